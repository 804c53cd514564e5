"""Batches in other frameworks, through DLPack: the same memory, which keeps its slot for as long as they keep it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import datasets
import numpy
import pytest

import feedline

#: Large enough that a batch is a view of its slot.
FIELDS = {"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(160)), "label": feedline.Int("cls")}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_consumer_keeps_the_slot(
    load: Callable[..., feedline.Loader], monkeypatch: pytest.MonkeyPatch, kind: str, layout: str
) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    monkeypatch.setenv("FEEDLINE_TENSORS", kind)
    loader = load(fields=FIELDS, slots=4, layout=layout, drop_last=True)
    kept, copies = [], []
    for batch in loader:
        image, label = batch
        assert image.__dlpack_device__()[0] == label.__dlpack_device__()[0] == 1
        kept.append(numpy.from_dlpack(image))
        assert kept[-1].ctypes.data == (image.ctypes.data if kind == "numpy" else image.data_ptr())
        assert kept[-1].shape == tuple(image.shape) and numpy.from_dlpack(label).tolist() == label.tolist()
        copies.append(kept[-1].copy())
    # Two slots are kept, and so the rest came as copies: none was written to meanwhile.
    assert len(kept) == 12 and loader.copied_batches == 10
    for number in range(2):
        assert all(map(numpy.array_equal, kept, copies)), number
        del batch, image
        # They outlive the iteration and the stream.
        loader.close()
        batch = image = None
    kept.clear()
    for batch in loader:
        numpy.from_dlpack(batch["image"])
    assert loader.copied_batches == 10


def test_lists_have_none(load: Callable[..., feedline.Loader]) -> None:
    loader = load(fields={"key": feedline.Text("cls"), "label": feedline.Int("cls")})
    keys, labels = loader.peek()
    assert not hasattr(keys, "__dlpack__") and hasattr(labels, "__dlpack__")


# Each framework has a process of its own: it starts threads, which later forks of this one would be warned of.
USE = """
os.environ["FEEDLINE_TENSORS"] = sys.argv[2]
import numpy
{setup}
FIELDS = {{"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(160)), "label": feedline.Int("cls")}}
loader = load(sys.argv[1], fields=FIELDS, slots=4, drop_last=True, layout=sys.argv[3])
kept, copies = [], []
for batch in loader:
    image, label = batch
    kept.append({take})
    copies.append(numpy.array(image))
    say(bool(kept[-1].shape == image.shape), {address} == (image.ctypes.data if sys.argv[2] == "numpy" else image.data_ptr()))
    say({labels} == label.tolist())
    del batch, image
say(len(kept), loader.copied_batches, all(bool((numpy.asarray(array) == copy).all()) for array, copy in zip(kept, copies)))
kept.clear()
for batch in loader:
    {take_again}
say(loader.copied_batches)
"""

FRAMEWORKS = {
    "jax": USE.format(
        setup="os.environ['JAX_PLATFORMS'] = 'cpu'\nimport jax",
        take="jax.dlpack.from_dlpack(image)",
        address="kept[-1].unsafe_buffer_pointer()",
        labels="jax.dlpack.from_dlpack(label).tolist()",
        take_again="jax.dlpack.from_dlpack(batch['image'])",
    ),
    "tensorflow": USE.format(
        setup="os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nimport tensorflow as tf\nimport torch\ntake = tf.experimental.dlpack.from_dlpack",
        take="take(image.__dlpack__())",
        # Its own .numpy() is a copy.
        address="torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(kept[-1])).data_ptr()",
        labels="take(label.__dlpack__()).numpy().tolist()",
        take_again="take(batch['image'].__dlpack__())",
    ),
}


@pytest.mark.parametrize(
    ("framework", "kind", "layout"),
    [
        ("jax", "numpy", "NHWC"), ("jax", "torch", "NHWC"), ("jax", "torch", "NCHW"),
        # TensorFlow takes memory in C order alone.
        ("tensorflow", "numpy", "NHWC"), ("tensorflow", "torch", "NCHW"),
    ],
)  # fmt: skip
def test_frameworks(script: Callable[..., Any], dataset: datasets.Dataset, framework: str, kind: str, layout: str) -> None:
    for package in {framework, kind, "torch" if framework == "tensorflow" else kind}:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"not installed: {package}")
    said, _ = script(FRAMEWORKS[framework], dataset.pattern, kind, layout).finish()
    assert said[:-2] == [[True, True], [True]] * 12
    assert said[-2:] == [[12, 10, True], [10]]
