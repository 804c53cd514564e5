"""Shards by webdataset's own writer, beside what webdataset's own reader makes of the same files."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

import feedline

wds = pytest.importorskip("webdataset")

#: Its readers leave files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

FIELDS = {"photo": feedline.Bytes("jpg"), "label": feedline.Int("cls"), "notes": feedline.Json("json")}


def rows_of(loader: feedline.Loader) -> list[tuple[str, bytes, int, Any]]:
    """Every sample of an epoch: key, bytes, label, parsed JSON."""
    rows = []
    for batch in loader:
        rows += [
            (key, bytes(photo), int(label), notes)
            for key, photo, label, notes in zip(batch.sample_keys, batch["photo"], batch["label"], batch["notes"], strict=True)
        ]
    return rows


def samples(count: int) -> list[dict[str, Any]]:
    return [
        {"__key__": f"set/{number:06}", "jpg": datasets.photo(number, 40, 30), "cls": number % 7, "json": {"number": number}}
        for number in range(count)
    ]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("count", [1, 23])
def test_shard_writer(load: Callable[..., feedline.Loader], tmp_path: Path, compress: bool, count: int) -> None:
    ending = ".tar.gz" if compress else ".tar"
    with wds.ShardWriter(f"{tmp_path}/part-%06d{ending}", maxcount=5, compress=compress, verbose=0) as sink:
        for sample in samples(count):
            sink.write(sample)
    shards = sorted(str(path) for path in tmp_path.glob("part-*"))
    assert len(shards) == (count + 4) // 5
    theirs = [
        (sample["__key__"], sample["jpg"], int(sample["cls"]), json.loads(sample["json"]))
        for sample in wds.WebDataset(shards, shardshuffle=False)
    ]
    assert len(theirs) == count
    assert rows_of(load(shards, fields=FIELDS, shuffle=False, batch_size=4)) == theirs
    shuffled = load(shards, fields=FIELDS, shuffle=None, order="block", block_shards=2, batch_size=4)
    assert sorted(rows_of(shuffled), key=lambda row: row[0]) == theirs


def test_names_are_cut_as_by_webdataset(load: Callable[..., feedline.Loader], tmp_path: Path) -> None:
    """Dots in folders and in base names, capitals, several files of one type."""
    path = tmp_path / "x.tar"
    names = ["v1.0/22.0/1.left.PNG", "v1.0/22.0/1.right.png", "v1.0/22.0/1.Cls", "a b/ü.left.png", "a b/ü.right.png", "a b/ü.cls"]
    datasets.write_shard(path, [(name, str(number).encode()) for number, name in enumerate(names)])
    theirs = [
        (sample["__key__"], sample["left.png"], sample["right.png"], int(sample["cls"]))
        for sample in wds.WebDataset(str(path), shardshuffle=False)
    ]
    fields = {"left": feedline.Bytes("left.png"), "right": feedline.Bytes("right.png"), "label": feedline.Int("cls")}
    (batch,) = load(path, fields=fields, shuffle=False, batch_size=9)
    rows = zip(batch.sample_keys, map(bytes, batch["left"]), map(bytes, batch["right"]), batch["label"].tolist(), strict=True)
    assert list(rows) == theirs


def test_a_writer_that_was_not_closed(load: Callable[..., feedline.Loader], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It leaves whole blocks of 10 KiB, so its shard ends in the middle of a member."""
    made = samples(30)
    target = io.BytesIO()
    sink = wds.TarWriter(target)
    for sample in made:
        sink.write(sample)
    path = tmp_path / "open.tar"
    path.write_bytes(target.getvalue())
    with pytest.raises(feedline.LoaderError, match=r"open\.tar: at byte \d+: the shard is cut off"):
        rows_of(load(path, fields=FIELDS, shuffle=False))
    with caplog.at_level(logging.INFO, logger="feedline"):
        rows = rows_of(load(path, fields=FIELDS, shuffle=False, damaged="skip_rest"))
    assert "damaged shards, not used from the damage on" in caplog.text and f"{path}, byte" in caplog.text
    assert 20 < len(rows) < 30
    assert [(key, photo) for key, photo, _, _ in rows] == [(one["__key__"], one["jpg"]) for one in made[: len(rows)]]
    sink.close()
    path.write_bytes(target.getvalue())
    assert len(rows_of(load(path, fields=FIELDS, shuffle=False))) == 30
