"""Shards by Python's tarfile, from end to end: every sample once, whatever the shards, the ranks and the threads."""

from __future__ import annotations

import io
import os
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import write_shard

import feedline

LABEL = {"label": feedline.Int("cls")}


def keys_of(loader: feedline.Loader) -> list[str]:
    return [key for batch in loader for key in batch.sample_keys]


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_fewer_and_uneven_shards_than_ranks(load: Callable[..., feedline.Loader], tmp_path: Path, world_size: int, tail: str) -> None:
    """Shards of 7, 0, 5 and 1 samples, batches of 2: every rank takes as many steps."""
    number = 0
    for shard, count in enumerate((7, 0, 5, 1)):
        write_shard(tmp_path / f"{shard}.tar", [(f"{number + n}.cls", str(number + n).encode()) for n in range(count)])
        number += count
    loaders = [
        load(str(tmp_path / "{0..3}.tar"), fields=LABEL, batch_size=2, tail=tail, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    rest = 13 % (2 * world_size)
    if tail == "short" and 0 < rest < world_size:
        with pytest.raises(ValueError, match=f"the last global batch has {rest} sample.*a rank would get none"):
            len(loaders[0])
        return
    ranks = [[(batch.sample_keys, batch.valid) for batch in loader] for loader in loaders]
    steps = {len(batches) for batches in ranks}
    assert steps == {len(loaders[0])}
    rows = [(key, bool(is_valid)) for batches in ranks for names, valid in batches for key, is_valid in zip(names, valid, strict=True)]
    keys = Counter(key for key, is_valid in rows if is_valid)
    assert set(keys.values()) == {1}
    whole = 13 if tail != "drop" else 13 // (2 * world_size) * 2 * world_size
    assert len(keys) == whole


def test_a_rank_that_would_get_nothing_is_refused(load: Callable[..., feedline.Loader], tmp_path: Path) -> None:
    write_shard(tmp_path / "s.tar", [(f"{number}.cls", b"1") for number in range(9)])
    with pytest.raises(ValueError, match='tail="pad"'):
        len(load(tmp_path / "s.tar", fields=LABEL, batch_size=2, rank=3, world_size=4))


def test_4096_samples_are_4096_with_any_number_of_threads(
    load: Callable[..., feedline.Loader], serve: Callable[..., Any], tmp_path: Path
) -> None:
    write_shard(tmp_path / "s.tar", [(f"{number:04}.txt", b"x") for number in range(4096)])
    everything = [f"{number:04}" for number in range(4096)]
    orders = []
    for workers in ("1", "2", "16"):
        loader = load(tmp_path / "s.tar", fields={"text": feedline.Text("txt")}, batch_size=100, sidecar=serve("--workers", workers).socket)
        assert len(loader.dataset) == 4096 and len(loader) == 41
        orders.append(keys_of(loader))
        assert sorted(orders[-1]) == everything
    assert orders[0] == orders[1] == orders[2] != everything


def test_members_without_bytes(load: Callable[..., feedline.Loader], tmp_path: Path) -> None:
    """An image of no bytes is a fault with a class of its own, told where it is; a text of none is a text."""
    photo = datasets.photo(1, 40, 30)
    path = tmp_path / "s.tar"
    write_shard(path, [("0.jpg", photo), ("0.txt", b""), ("1.jpg", b""), ("1.txt", b"one"), ("2.jpg", photo), ("2.txt", b"two")])
    fields = {"image": feedline.Image(["jpg"], feedline.Resize((8, 8))), "text": feedline.Text("txt")}
    texts = {}
    faults = []
    for batch in load(path, fields=fields, shuffle=False, on_error="replace", error_budget=1.0):
        faults += batch.report
        texts.update(zip(batch.sample_keys, batch["text"], strict=True))
    assert texts == {"0": "", "2": "two"}
    assert {(fault.key, fault.field, fault.fault_class, fault.shard) for fault in faults} == {("1", "image", "empty", str(path))}
    with pytest.raises(feedline.SampleError, match=rf'{path}.*key "1".*image.*empty'):
        keys_of(load(path, fields=fields, shuffle=False))


def test_shards_that_are_read_while_they_are_written(load: Callable[..., feedline.Loader], tmp_path: Path) -> None:
    """A shard that grows between two runs is indexed again, and never read by its old offsets."""
    path = tmp_path / "s.tar"
    write_shard(path, [(f"{number}.cls", str(number).encode()) for number in (0, 2)])
    assert keys_of(load(path, fields=LABEL, shuffle=False)) == ["0", "2"]
    write_shard(path, [(f"{number}.cls", str(number).encode()) for number in (0, 1, 2)])
    assert [int(label) for batch in load(path, fields=LABEL, shuffle=False) for label in batch["label"]] == [0, 1, 2]
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("3.cls")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"3"))
    assert [int(label) for batch in load(path, fields=LABEL, shuffle=False) for label in batch["label"]] == [0, 1, 2, 3]


def test_no_usable_sample_is_an_error_that_shows_both_sides(load: Callable[..., feedline.Loader], tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [(f"{number}.cls", b"1") for number in range(150)])
    write_shard(tmp_path / "b.tar", [(f"{number}.txt", b"1") for number in range(150)])
    with pytest.raises(ValueError, match=r"asked for: json; the 150 samples have: cls \(150\)"):
        len(load(tmp_path / "a.tar", fields={"notes": feedline.Json("json")}))
    # Each has one of the two fields: none has both.
    fields = {"label": feedline.Int("cls"), "text": feedline.Text("txt")}
    with pytest.raises(feedline.BudgetError, match=r"100 samples in a row(.|\n)*missing-field"):
        keys_of(load([tmp_path / "a.tar", tmp_path / "b.tar"], fields=fields, error_budget=1.0))


def test_names_that_are_no_text(load: Callable[..., feedline.Loader], tmp_path: Path) -> None:
    """Two names that differ only in a byte that is no UTF-8 are two samples."""
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1", errors="surrogateescape") as tar:
        for name in ("a\xe9.cls", "a\xe8.cls", os.fsdecode(b"a\xff.cls")):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    assert keys_of(load(path, fields=LABEL, shuffle=False)) == ["a\\xe9", "a\\xe8", "a\\xff"]
