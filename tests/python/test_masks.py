"""Masks: class numbers kept, nearest as Pillow's, the same boxes and flips as the image."""

from __future__ import annotations

import io
import json
import struct
import zlib

import datasets
import numpy
import pytest
from PIL import Image

import feedline
from feedline import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, _native


def png(array: numpy.ndarray, mode: str | None = None, **save: object) -> bytes:
    image = Image.fromarray(array)
    if mode == "P":
        image = image.convert("L")
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette([channel for index in range(256) for channel in (index * 37 % 256, index * 91 % 256, 255 - index)])
    target = io.BytesIO()
    image.save(target, "PNG", **save)
    return target.getvalue()


def numbers(seed: int, width: int, height: int, classes: int = 256) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, classes, (height, width), dtype=numpy.uint8)


def load_one(load, folder, body: bytes, mask: feedline.Mask, **options: object) -> numpy.ndarray:
    datasets.write_shard(folder / "a.tar", [("0.png", body)])
    (batch,) = load(str(folder / "a.tar"), fields={"mask": mask}, shuffle=False, batch_size=1, **options)
    return numpy.asarray(batch["mask"])[0]


def grey_png(array: numpy.ndarray, bits: int) -> bytes:
    """A grey PNG of few bits, which Pillow reads but does not write."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    height, width = array.shape
    spread = ((array[..., None] >> numpy.arange(bits - 1, -1, -1)) & 1).reshape(height, -1)
    rows = numpy.packbits(spread.astype(bool), axis=1)
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("mode", ["P", "L"])
def test_numbers_are_as_stored(load, tmp_path, bits, mode) -> None:
    expected = numbers(bits, 13, 7, 2**bits)
    body = png(expected, "P", bits=bits) if mode == "P" else grey_png(expected, bits)
    found = load_one(load, tmp_path, body, feedline.Mask("png", CenterCrop((7, 13))))
    assert found.dtype == numpy.uint8
    assert (found == expected).all()
    stored = numpy.asarray(Image.open(io.BytesIO(body))).astype(int)
    # Pillow scales grey of 2 and 4 bits to 8; the numbers of classes stay.
    assert (stored == (expected * (255 // (2**bits - 1)) if mode == "L" and bits in (2, 4) else expected)).all()


def test_wide_masks_need_int32(load, tmp_path) -> None:
    expected = numpy.arange(63, dtype=numpy.uint16).reshape(7, 9) * 1000
    crop = CenterCrop((9, 11))
    found = load_one(load, tmp_path, png(expected), feedline.Mask("png", crop, dtype="int32", fill=65535))
    assert found.dtype == numpy.int32
    assert (found[1:8, 1:10] == expected).all() and found[0, 0] == 65535
    with pytest.raises(feedline.SampleError, match="16 bits"):
        load_one(load, tmp_path, png(expected), feedline.Mask("png", crop))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (png(numpy.zeros((4, 4, 3), numpy.uint8)), "PNG is Rgb"),
        (datasets.photo(1, 8, 8, "L"), "JPEG changes"),
        (b"", "the mask has no bytes"),
        (png(numbers(0, 9, 9))[:60], "truncated"),
    ],
)
def test_what_is_no_mask(load, tmp_path, body, words) -> None:
    with pytest.raises(feedline.SampleError, match=words):
        load_one(load, tmp_path, body, feedline.Mask("png", CenterCrop(4)))


@pytest.mark.parametrize(("name", "suffix"), [("TIFF", "tif"), ("PPM", "pgm")])
def test_other_grey_formats(load, tmp_path, name, suffix) -> None:
    target = io.BytesIO()
    Image.fromarray(numbers(1, 9, 5)).save(target, name)
    found = load_one(load, tmp_path, target.getvalue(), feedline.Mask("png", CenterCrop((5, 9))))
    assert (found == numbers(1, 9, 5)).all()


def pillow(mask: numpy.ndarray, transforms: list[feedline.fields.Transform], seed: int, epoch: int, sample: int) -> numpy.ndarray:
    """The same by Pillow, from the boxes that were drawn."""
    image = Image.fromarray(mask)
    height, width = mask.shape
    specs = json.dumps([transform.spec() for transform in transforms])
    stages = json.loads(_native.draw_geometry(specs, width, height, seed, epoch, sample))
    for stage in stages:
        left, top, width, height = stage["source"]
        image = image.resize(stage["resized"], Image.Resampling.NEAREST, (left, top, left + width, top + height))
        left, top, width, height = stage["window"]
        # Pillow's crop pads with zeros.
        image = image.crop((left, top, left + width, top + height))
        if stage["mirrored"]:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return numpy.asarray(image)


CHAINS = [
    [RandomResizedCrop(32), RandomHorizontalFlip()],
    [RandomResizedCrop((45, 17), scale=(0.01, 0.3)), RandomHorizontalFlip(1.0)],
    [Resize(40), CenterCrop(48)],
    [Resize((300, 301)), RandomHorizontalFlip()],
    [RandomHorizontalFlip(), Resize(100), RandomResizedCrop(33)],
]


@pytest.mark.parametrize("chain", CHAINS)
def test_nearest_is_pillow_s_to_the_bit(load, tmp_path, chain) -> None:
    random = numpy.random.default_rng(3)
    masks = [numbers(number, *(int(side) for side in random.integers(1, 300, 2))) for number in range(40)]
    members = [(f"{number:03d}.png", png(mask, "P")) for number, mask in enumerate(masks)]
    datasets.write_shard(tmp_path / "a.tar", members)
    loader = load(str(tmp_path / "a.tar"), fields={"mask": feedline.Mask("png", *chain)}, shuffle=False)
    for epoch in range(2):
        rows = [row for batch in loader for row in numpy.asarray(batch["mask"])]
        for sample, (mask, row) in enumerate(zip(masks, rows, strict=True)):
            assert (row == pillow(mask, chain, 5, epoch, sample)).all(), (sample, mask.shape)


@pytest.mark.parametrize("order", [("image", "mask"), ("mask", "image")])
def test_a_linked_mask_goes_with_its_image(load, tmp_path, order) -> None:
    """The image shows in red where it is; a mask made of the same gradient must have the same box and flip."""
    members = []
    for number in range(24):
        width, height = 64 + number * 5, 200 - number * 4
        across = numpy.linspace(0, 255, width).round().astype(numpy.uint8)
        plane = numpy.broadcast_to(across, (height, width))
        rgb = numpy.stack([plane, numpy.full_like(plane, 7), plane], -1)
        members += [(f"{number:03d}.png", png(rgb)), (f"{number:03d}.seg.png", png(numpy.ascontiguousarray(plane), "P"))]
    datasets.write_shard(tmp_path / "a.tar", members)
    fields = {
        "image": feedline.Image("png", RandomResizedCrop(48), RandomHorizontalFlip()),
        "mask": feedline.Mask("seg.png", like="image"),
    }
    for batch in load(str(tmp_path / "a.tar"), fields={name: fields[name] for name in order}):
        red = numpy.asarray(batch["image"])[:, 0].astype(int)
        mask = numpy.asarray(batch["mask"]).astype(int)
        # Bilinear against nearest of one slope: apart by about half a pixel's step.
        assert numpy.abs(red - mask).max() <= 6


def test_a_mask_of_another_size_is_bad(load, tmp_path) -> None:
    members = [("0.png", png(numpy.zeros((8, 9, 3), numpy.uint8))), ("0.seg.png", png(numbers(0, 9, 9)))]
    datasets.write_shard(tmp_path / "a.tar", members)
    fields = {"mask": feedline.Mask("seg.png", like="image"), "image": feedline.Image("png", RandomResizedCrop(4))}
    with pytest.raises(feedline.SampleError, match="the mask has 9x9 pixels, its image 9x8"):
        list(load(str(tmp_path / "a.tar"), fields=fields, shuffle=False))


def test_a_missing_mask_can_have_a_default(load, tmp_path) -> None:
    members = [("0.png", png(numpy.zeros((8, 9, 3), numpy.uint8))), ("1.png", png(numpy.zeros((8, 9, 3), numpy.uint8))),
               ("1.seg.png", png(numbers(0, 9, 8)))]  # fmt: skip
    datasets.write_shard(tmp_path / "a.tar", members)
    fields = {
        "image": feedline.Image("png", Resize((8, 9))),
        "mask": feedline.Mask("seg.png", like="image", default=255),
    }
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False)
    mask = numpy.asarray(batch["mask"])
    assert (mask[0] == 255).all() and (mask[1] == numbers(0, 9, 8)).all()


def test_like_must_name_an_image() -> None:
    with pytest.raises(ValueError, match="names no image field"):
        feedline.Loader(__file__, fields={"mask": feedline.Mask("png", like="image")})
