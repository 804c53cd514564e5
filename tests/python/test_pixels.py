"""Pixels against Pillow: `crop` and `resize(BILINEAR)` of Pillow's own decode, for the same boxes.

The bound is that of a fixed-point resample against another: within 1 level for 99.9 % of values, never more than 2.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import datasets
import numpy
import pytest
from PIL import Image

import feedline
from feedline import _native

CHAINS = {
    "crop": (feedline.RandomResizedCrop(64),),
    "train": (feedline.RandomResizedCrop((48, 80), scale=(0.2, 0.9)), feedline.RandomHorizontalFlip()),
    "evaluate": (feedline.Resize(72), feedline.CenterCrop(64)),
    "squash": (feedline.Resize((50, 70)),),
    "pad": (feedline.CenterCrop(300), feedline.RandomHorizontalFlip(1.0)),
}


def by_pillow(photo: bytes, transforms, seed: int, epoch: int, sample: int) -> numpy.ndarray:
    """What Pillow makes of `photo` for the boxes that Feedline draws."""
    reference = pytest.importorskip("feedline.parity.reference", exc_type=ImportError)
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    specs = json.dumps([transform.spec() for transform in transforms])
    return reference.by_pillow(image, json.loads(_native.draw_geometry(specs, *image.size, seed, epoch, sample)))


def check_dataset(load, dataset: datasets.Dataset, transforms, epochs: int) -> None:
    sample_of = {key: number for number, key in enumerate(dataset.keys)}
    fields = {"image": feedline.Image(["jpg"], *transforms)}
    loader = load(dataset.pattern, fields=fields, seed=11, batch_size=25, on_error="raise")
    differences = numpy.zeros(256, numpy.int64)
    for epoch in range(epochs):
        for batch in loader:
            for key, pixels in zip(batch.sample_keys, batch["image"].permute(0, 2, 3, 1).numpy(), strict=True):
                sample = sample_of[key]
                expected = by_pillow(dataset.photos[sample], transforms, 11, epoch, sample)
                assert pixels.shape == expected.shape, key
                difference = numpy.abs(pixels.astype(numpy.int16) - expected)
                assert difference.max() <= 2, f"{key}: {difference.max()} levels, epoch {epoch}"
                differences += numpy.bincount(difference.ravel(), minlength=256)
    beyond = differences[2:].sum() / differences.sum()
    assert beyond <= 0.001, f"{beyond:.3%} of values differ by more than 1 level"


@pytest.mark.parametrize("chain", CHAINS)
def test_generated_photos(load, dataset, chain) -> None:
    pytest.importorskip("torch")
    check_dataset(load, dataset, CHAINS[chain], epochs=2)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> datasets.Dataset:
    """JPEGs of every kind: subsamplings, progressive, gray, restart markers."""
    folder = tmp_path_factory.mktemp("kinds")
    saves = [
        {"subsampling": subsampling, "progressive": progressive, "quality": quality, "optimize": optimize}
        for subsampling in ("4:4:4", "4:2:2", "4:2:0")
        for progressive in (False, True)
        for quality, optimize in ((60, False), (95, True))
    ]
    damage = {}
    for number, save in enumerate(saves):
        damage[2 * number] = datasets.photo(number, 151 + 7 * number, 233 - 5 * number, **save)
        damage[2 * number + 1] = datasets.photo(number, 97, 130 + number, "L", **{**save, "subsampling": -1})
    return datasets.write(folder, len(damage), 1, damage)


@pytest.mark.parametrize("chain", ["train", "evaluate"])
def test_kinds_of_jpeg(load, kinds, chain) -> None:
    pytest.importorskip("torch")
    check_dataset(load, kinds, CHAINS[chain], epochs=2)


@pytest.fixture(scope="module")
def real_photos(tmp_path_factory) -> datasets.Dataset:
    """The photos in the folder FEEDLINE_PHOTOS."""
    folder = os.environ.get("FEEDLINE_PHOTOS")
    if not folder:
        pytest.skip("FEEDLINE_PHOTOS names no folder of real photos")
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    photos = {number: path.read_bytes() for number, path in enumerate(paths)}
    assert photos, f"no photo in {folder}"
    return datasets.write(tmp_path_factory.mktemp("photos"), len(photos), 2, photos)


@pytest.mark.parametrize("chain", ["train", "evaluate"])
def test_real_photos(load, real_photos, chain) -> None:
    pytest.importorskip("torch")
    check_dataset(load, real_photos, CHAINS[chain], epochs=1)


def test_pillow_s_colours_of_four_components(load, tmp_path) -> None:
    """CMYK has no crop-exact reference, so its colours are compared within 1 level of the whole image."""
    pytest.importorskip("torch")
    photos = {number: datasets.photo(number, 120, 90, "CMYK") for number in range(4)}
    dataset = datasets.write(tmp_path, 4, 1, photos)
    transforms = (feedline.Resize((90, 120)),)
    fields = {"image": feedline.Image(["jpg"], *transforms)}
    batch = next(iter(load(dataset.pattern, fields=fields, batch_size=4, shuffle=False)))
    for sample, pixels in enumerate(batch["image"].permute(0, 2, 3, 1).numpy()):
        expected = by_pillow(photos[sample], transforms, 5, 0, sample).astype(numpy.int16)
        assert numpy.abs(pixels - expected).max() <= 1
