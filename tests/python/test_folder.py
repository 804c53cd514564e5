"""A folder of plain images, and lists of shards."""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feedline


def write_image(path: Path, shade: int) -> None:
    """A grey image of one shade."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (shade, shade, shade)).save(path)


def test_a_folder_of_classes_works_without_conversion(tmp_path: Path, load: Callable[..., feedline.Loader]) -> None:
    shades = {"ant/1.png": 10, "ant/deep/2.png": 20, "bee/3.png": 30, "cat/4.JPG": 40, "cat/5.bmp": 50}
    for name, shade in shades.items():
        write_image(tmp_path / "tree" / name, shade)
    (tmp_path / "tree" / "notes.txt").write_text("not an image")
    for shuffle in (False, True):
        loader = load(str(tmp_path / "tree"), fields=None, batch_size=2, shuffle=shuffle)
        assert loader.dataset.classes == ["ant", "bee", "cat"] and len(loader.dataset) == 5
        seen = {}
        for batch in loader:
            images, labels = batch
            assert images.shape[1:] == (3, 224, 224)
            for key, image, label in zip(batch.sample_keys, images, labels, strict=True):
                seen[key] = (round(float(np.asarray(image).mean())), int(label))
        expected = {"ant/1": (10, 0), "ant/deep/2": (20, 0), "bee/3": (30, 1), "cat/4": (40, 2), "cat/5": (50, 2)}
        assert seen == expected


def test_a_file_that_goes_away_ends_the_run_with_its_name(tmp_path: Path, load: Callable[..., feedline.Loader]) -> None:
    for number in range(64):
        write_image(tmp_path / "tree" / "a" / f"{number}.png", number)
    loader = load(str(tmp_path / "tree"), fields=None, batch_size=2, shuffle=False, slots=4)
    batches = iter(loader)
    next(batches)
    (tmp_path / "tree" / "a" / "9.png").unlink()
    with pytest.raises((OSError, feedline.LoaderError), match=r"9\.png"):
        for _ in batches:
            pass


def write_shard(path: Path, numbers: range) -> None:
    """Samples with a label alone."""
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = len(str(number))
            tar.addfile(member, io.BytesIO(str(number).encode()))


def test_lists_folders_and_holes(
    tmp_path: Path, load: Callable[..., feedline.Loader], caplog: pytest.LogCaptureFixture
) -> None:
    for shard in (0, 1, 3):
        write_shard(tmp_path / f"s-{shard:03}.tar", range(shard * 10, shard * 10 + 10))
    (tmp_path / "list.txt").write_text("# two\ns-000.tar\ns-{003..003}.tar\n")
    fields = {"label": feedline.Int("cls")}

    def labels(shards: str, **options: object) -> list[int]:
        loader = load(shards, fields=fields, shuffle=False, batch_size=5, **options)
        return [int(label) for (batch,) in loader for label in batch]

    assert labels(f"@{tmp_path}/list.txt") == [*range(10), *range(30, 40)]
    assert labels(str(tmp_path)) == [*range(20), *range(30, 40)]
    with pytest.raises(ValueError, match=r"2 of 5 shards are missing: .*s-002\.tar, .*missing_shards"):
        labels(f"{tmp_path}/s-{{000..004}}.tar")
    with caplog.at_level(logging.WARNING, logger="feedline"):
        assert labels(f"{tmp_path}/s-{{000..004}}.tar", missing_shards="skip") == [*range(20), *range(30, 40)]
    assert "2 of 5 shards are missing" in caplog.text and "skipped" in caplog.text


def test_policies_reach_the_index(tmp_path: Path, load: Callable[..., feedline.Loader]) -> None:
    fields = {"label": feedline.Int("cls")}
    with tarfile.open(tmp_path / "d.tar", "w") as tar:
        for name, body in (("0.cls", b"1"), ("0.cls", b"2"), ("1.txt", b""), ("2.cls", b"3"), ("1.cls", b"4")):
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))

    def labels(**options: object) -> list[int]:
        loader = load(str(tmp_path / "d.tar"), fields=fields, shuffle=False, batch_size=5, **options)
        return [int(label) for (batch,) in loader for label in batch]

    with pytest.raises(feedline.LoaderError, match="duplicates="):
        labels()
    with pytest.raises(feedline.LoaderError, match="unsorted="):
        labels(duplicates="first")
    assert labels(duplicates="first", unsorted="regroup") == [1, 4, 3]
    assert labels(duplicates="last", unsorted="regroup") == [2, 4, 3]
    assert labels(duplicates="drop_sample", unsorted="regroup") == [4, 3]
    with pytest.raises(ValueError, match="duplicates must be"):
        labels(duplicates="both")
