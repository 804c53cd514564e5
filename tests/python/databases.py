"""LMDB databases as py-lmdb writes them, and what tests of them share."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
from PIL import Image

import feedline

lmdb = pytest.importorskip("lmdb")

IMAGE = {"image": feedline.Image(["image"], feedline.Resize((16, 16)))}
VALUES = {"value": feedline.Int("value")}
PAIR = {**IMAGE, "label": feedline.Int("label")}


def write(path: Path, pairs: Iterable[tuple[bytes, bytes]], name: bytes | None = None, **options: Any) -> Path:
    """A database of `pairs`, written in one commit."""
    options = {"map_size": 1 << 28, "max_dbs": 4, **options}
    with lmdb.open(str(path), **options) as environment:
        database = environment.open_db(name) if name else None
        with environment.begin(write=True) as transaction:
            for key, value in pairs:
                transaction.put(key, value, db=database)
    return path


def photos(count: int) -> list[bytes]:
    return [datasets.photo(number, 40 + number % 9, 30 + number % 7) for number in range(count)]


def pixels(photo: bytes) -> numpy.ndarray[Any, Any]:
    """What Pillow makes of a photo, at 16 x 16."""
    return numpy.asarray(Image.open(io.BytesIO(photo)).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))


def close_to(found: Any, photo: bytes) -> bool:
    found = numpy.asarray(found).transpose(1, 2, 0).astype(int)
    return bool((abs(found - pixels(photo)) <= 2).all())


@pytest.fixture
def epoch(load: Callable[..., feedline.Loader]) -> Callable[..., list[tuple[str, Any, int | None]]]:
    """One epoch in order: key, image, label."""

    def run(path: Path | str | list[str], fields: Any = IMAGE, **options: Any) -> list[tuple[str, Any, int | None]]:
        loader = load(str(path) if isinstance(path, Path) else path, fields=fields, shuffle=False, batch_size=4, **options)
        rows = []
        for batch in loader:
            labels = batch["label"].tolist() if "label" in fields else [None] * len(batch.sample_keys)
            images = batch["image"].clone() if "image" in fields else [None] * len(batch.sample_keys)
            rows += list(zip(batch.sample_keys, images, labels, strict=True))
        return rows

    return run


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "feedline")


def digits(count: int, number: int) -> list[tuple[bytes, bytes]]:
    return [(b"%03d" % key, (b"%d" % (number + key)).rjust(600)) for key in range(count)]
