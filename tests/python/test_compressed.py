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
from typing import Any

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


PACKERS = {"gzip": gzip.compress, "xz": lzma.compress, "zstd": zstd}


@pytest.mark.parametrize("packer", PACKERS)
def test_zeros_behind_a_stream_are_padding_and_anything_else_is_told(
    tmp_path: Path, load: Callable[..., feedline.Loader], packer: str
) -> None:
    """As tapes and block devices pad; Python's and GNU's gzip take it."""
    halves = [PACKERS[packer](tar_bytes(shard)) for shard in range(2)]
    path = tmp_path / "s.tar"
    options = {"fields": FIELDS, "shuffle": False, "batch_size": 7}
    both = list(range(2 * SAMPLES))
    path.write_bytes(halves[0] + bytes(-len(halves[0]) % 10_240))
    assert labels(load(path, **options)) == both[:SAMPLES]
    if packer == "gzip":
        assert gzip.decompress(path.read_bytes()) == tar_bytes(0)
    path.write_bytes(b"".join([halves[0], bytes(1000), halves[1], bytes(3)]))
    assert labels(load(path, **options)) == both
    path.write_bytes(b"".join([halves[0], bytes(1000), b"junk"]))
    with pytest.raises(feedline.ShardError, match=f"at byte {len(halves[0]) + 1000} of the file, behind the end of a {packer} stream"):
        labels(load(path, **options))
    assert labels(load(path, damaged="skip_rest", **options)) == both[:SAMPLES]


def test_frames_that_are_to_be_skipped(tmp_path: Path, load: Callable[..., feedline.Loader]) -> None:
    """pzstd puts one before each frame, with its length."""
    packed = zstd(tar_bytes(0))
    (tmp_path / "s.tar").write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0" + len(packed).to_bytes(4, "little") + packed)
    assert labels(load(tmp_path / "s.tar", fields=FIELDS, shuffle=False)) == list(range(SAMPLES))


def test_a_window_that_is_too_large_is_told(tmp_path: Path, load: Callable[..., feedline.Loader]) -> None:
    program = shutil.which("zstd")
    if program is None:
        pytest.skip("zstd is not installed")
    # From a pipe the length is not known, so the window is as large as was asked.
    packed = subprocess.run([program, "-q", "-c", "--long=28"], input=tar_bytes(0), capture_output=True, check=True).stdout
    (tmp_path / "s.tar").write_bytes(packed)
    with pytest.raises(feedline.ShardError, match=r"zstd --long.*--long=27"):
        labels(load(tmp_path / "s.tar", fields=FIELDS, shuffle=False))


def test_substitutes_come_from_the_shards_that_are_unpacked(
    tmp_path: Path, load: Callable[..., feedline.Loader], serve: Callable[..., Any]
) -> None:
    """Bad samples in every shard: each row is filled, alike whatever the threads, from the shards of its block."""
    for shard in range(SHARDS):
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as tar:
            for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                body = b"none" if number % 8 == 3 else str(number).encode()
                member = tarfile.TarInfo(f"{number:05}.cls")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
        (tmp_path / f"s-{shard}.tar.gz").write_bytes(gzip.compress(target.getvalue()))
    pattern = f"{tmp_path}/s-{{0..{SHARDS - 1}}}.tar.gz"
    options = {"fields": {"label": feedline.Int("cls")}, "batch_size": 4, "on_error": "replace", "error_budget": 0.5}

    def rows(**more: Any) -> list[int]:
        """Labels in order; a substitute's is of the shard of all that were tried for its row."""
        found: list[int] = []
        for batch in load(pattern, **options, **more):
            found += batch["label"].tolist()
            for fault in batch.report:
                assert int(batch["label"][fault.row]) // SAMPLES == fault.sample // SAMPLES
        return found

    for order in ({"shuffle": None, "order": "block", "block_shards": 1}, {"shuffle": False}):
        found = rows(**order)
        assert len(found) == SHARDS * SAMPLES and not any(label % 8 == 3 for label in found)
        for workers in ("1", "5"):
            assert rows(**order, sidecar=serve("--workers", workers).socket) == found


def test_a_shard_of_bad_samples_alone_is_filled_from_others(tmp_path: Path, load: Callable[..., feedline.Loader]) -> None:
    for shard in range(4):
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as tar:
            for number in range(shard * 5, shard * 5 + 5):
                body = b"none" if shard == 1 else str(number).encode()
                member = tarfile.TarInfo(f"{number:05}.cls")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
        (tmp_path / f"s-{shard}.tar.gz").write_bytes(gzip.compress(target.getvalue()))
    options = {"fields": {"label": feedline.Int("cls")}, "batch_size": 4, "on_error": "replace", "error_budget": 1.0}
    found = [label for batch in load(str(tmp_path), shuffle=False, **options) for label in batch["label"].tolist()]
    assert len(found) == 20 and not any(5 <= label < 10 for label in found)
    assert [label for place, label in enumerate(found) if not 5 <= place < 10] == [*range(5), *range(10, 20)]
