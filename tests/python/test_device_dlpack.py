"""Batches on a real GPU in other frameworks, through DLPack, on the device. Skips where there is no GPU or no framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")

# Each framework has a process of its own, as two in one would share the device's memory badly.
USE = """
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import torch
{setup}
options = dict(fields={{"image": FIELDS["image"], "label": FIELDS["label"]}}, layout="NCHW", drop_last=True)
kept = []
for (there, labels), (here, own) in zip(load(sys.argv[1], device="cuda", **options), load(sys.argv[1], **options), strict=True):
    torch.cuda.synchronize()
    taken = {take}
    kept.append((taken, {number}))
    assert {number} == int(here.to(torch.int64).sum()) and labels.tolist() == own.tolist()
    del there, labels
assert all({again} == number for taken, number in kept)
say("batches", len(kept))
"""


@pytest.mark.parametrize(
    ("name", "setup", "take", "number"),
    [
        ("cupy", "import cupy", "cupy.from_dlpack(there)", "int(taken.astype(cupy.int64).sum())"),
        ("jax", "import jax, jax.numpy", "jax.dlpack.from_dlpack(there)", "int(jax.numpy.sum(taken, dtype='uint32'))"),
    ],
)
def test_on_the_device(
    script: Callable[..., Any], dataset: datasets.Dataset, name: str, setup: str, take: str, number: str
) -> None:
    pytest.importorskip(name)
    code = USE.format(setup=setup, take=take, number=number, again=number)
    assert ["batches", 12] in script(code, dataset.pattern, env={"FEEDLINE_TENSORS": "torch"}).finish()[0]
