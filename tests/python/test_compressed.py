"""Compressed shards, as gzip, zstd and xz write them."""

from __future__ import annotations

import gzip
import io
import logging
import lzma
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import feedline

FIELDS = {"label": feedline.Int("cls"), "text": feedline.Text("txt")}
SHARDS, SAMPLES = 6, 40


def tar_bytes(shard: int) -> bytes:
    """A tar of samples that know their number."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
            for field, body in (("cls", str(number)), ("txt", f"text {number} " * 50)):
                member = tarfile.TarInfo(f"{number:05}.{field}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body.encode()))
    return target.getvalue()


def zstd(data: bytes) -> bytes:
    """By the zstd program."""
    program = shutil.which("zstd")
    if program is None:
        pytest.skip("zstd is not installed")
    return subprocess.run([program, "-q", "-c"], input=data, capture_output=True, check=True).stdout


@pytest.fixture(params=["gzip", "xz", "zstd"])
def pattern(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Shards that are all called .tar, whatever they are."""
    pack = {"gzip": gzip.compress, "xz": lzma.compress, "zstd": zstd}[request.param]
    for shard in range(SHARDS):
        (tmp_path / f"s-{shard}.tar").write_bytes(pack(tar_bytes(shard)))
    return f"{tmp_path}/s-{{0..{SHARDS - 1}}}.tar"


def labels(loader: feedline.Loader) -> list[int]:
    """One epoch; each text must be its label's."""
    found = []
    for batch in loader:
        for label, text in zip(batch["label"], batch["text"], strict=True):
            assert text == f"text {int(label)} " * 50
            found.append(int(label))
    return found


def test_every_sample_once_in_orders_that_go_by_shards(
    pattern: str, load: Callable[..., feedline.Loader], caplog: pytest.LogCaptureFixture
) -> None:
    everything = list(range(SHARDS * SAMPLES))
    with caplog.at_level(logging.INFO, logger="feedline"):
        assert labels(load(pattern, fields=FIELDS, shuffle=False, batch_size=7)) == everything
    assert "6 of 6 shards are compressed" in caplog.text and "feedline convert" in caplog.text
    loader = load(pattern, fields=FIELDS, shuffle=None, order="block", block_shards=1, batch_size=7)
    epochs = [labels(loader) for _ in range(3)]
    assert all(sorted(epoch) == everything for epoch in epochs) and epochs[0] != epochs[1]
    # Shard by shard.
    shards = [label // SAMPLES for label in epochs[0]]
    assert [shards[place] for place in range(0, len(shards), SAMPLES)] == list(dict.fromkeys(shards))
    assert labels(load(pattern, fields=FIELDS, shuffle=None, order="block", block_shards=1, batch_size=7)) == epochs[0]


def test_resume_is_exact(pattern: str, load: Callable[..., feedline.Loader]) -> None:
    options = {"fields": FIELDS, "shuffle": None, "order": "block", "batch_size": 8, "workers": 2}
    whole = labels(load(pattern, **options))
    loader = load(pattern, **options)
    batches = iter(loader)
    for _ in range(13):
        next(batches)
    state = loader.state_dict()
    resumed = load(pattern, **options)
    resumed.load_state_dict(state)
    assert labels(resumed) == whole[13 * 8 :]


def test_orders_that_would_unpack_everything_are_refused(pattern: str, load: Callable[..., feedline.Loader]) -> None:
    with pytest.raises(ValueError, match=r'compressed.*order="block".*feedline convert'):
        labels(load(pattern, fields=FIELDS, shuffle=True))
    with pytest.raises(ValueError, match=r"block_shards may be at most 4"):
        labels(load(pattern, fields=FIELDS, shuffle=None, order="block", block_shards=5))


def test_damage_is_told_or_skipped(tmp_path: Path, load: Callable[..., feedline.Loader]) -> None:
    packed = gzip.compress(os.urandom(0) + tar_bytes(0))
    (tmp_path / "cut.tar.gz").write_bytes(packed[: len(packed) * 2 // 3])
    (tmp_path / "good.tar").write_bytes(tar_bytes(1))
    shards = [tmp_path / "cut.tar.gz", tmp_path / "good.tar"]
    with pytest.raises((ValueError, feedline.LoaderError), match=r"cut\.tar\.gz.*(damaged|cut off)"):
        labels(load(shards, fields=FIELDS, shuffle=False))
