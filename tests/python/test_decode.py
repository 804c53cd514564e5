"""What a job may choose about decoding: reduced or fast JPEGs, files that are cut off, orientation, transparency."""

from __future__ import annotations

import io
import os
from pathlib import Path

import datasets
import numpy
import pytest
from PIL import Image, ImageFile, ImageOps

import feedline
from feedline import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize


def encoded(image: Image.Image, format: str, **save: object) -> bytes:
    target = io.BytesIO()
    image.save(target, format, **save)
    return target.getvalue()


def opened(body: bytes) -> Image.Image:
    return Image.open(io.BytesIO(body))


def rows(load, photos: list[bytes], folder: Path, *transforms, batch=None, **choices) -> numpy.ndarray:
    """The images of one batch, (N, height, width, 3); `batch` takes the batch too."""
    datasets.write_shard(folder / "a.tar", [(f"{number:05d}.jpg", photo) for number, photo in enumerate(photos)])
    fields = {"image": feedline.Image("jpg", *transforms, **choices)}
    loader = load(str(folder / "a.tar"), fields=fields, shuffle=False, batch_size=len(photos), seed=3)
    (only,) = loader
    if batch is not None:
        batch.append(only)
    return numpy.asarray(only["image"]).transpose(0, 2, 3, 1)


def difference(load, photos: list[bytes], folder: Path, transforms, decode: str) -> tuple[float, float, int]:
    """Mean, 99.9th percentile and maximum of what a choice changes."""
    exact = rows(load, photos, folder, *transforms).astype(numpy.int16)
    found = numpy.abs(rows(load, photos, folder, *transforms, decode=decode) - exact)
    print(f"{decode}: mean {found.mean():.3f}, 99.9 % {numpy.percentile(found, 99.9):.0f}, most {found.max()}")
    return float(found.mean()), float(numpy.percentile(found, 99.9)), int(found.max())


SQUARE = (RandomResizedCrop(48, scale=(0.3, 1.0)), RandomHorizontalFlip())


def test_scaled_changes_little_and_small_boxes_not_at_all(load, tmp_path) -> None:
    pytest.importorskip("torch")
    photos = [datasets.photo(number, 300 + 97 * number, 280 + 61 * number, subsampling=sampling)
              for number in range(6) for sampling in ("4:4:4", "4:2:0")]  # fmt: skip
    mean, _, most = difference(load, photos, tmp_path, SQUARE, "scaled")
    assert 0 < mean < 1 and most <= 16
    # No box is four times its target: nothing is reduced.
    assert difference(load, photos[:4], tmp_path, (Resize((200, 200)),), "scaled") == (0, 0, 0)


@pytest.mark.parametrize(
    "transforms",
    [
        (Resize((48, 40), "bicubic"),),
        (Resize((48, 40), "nearest"),),
        (Resize((48, 40), antialias=False),),
        (feedline.RandomInvert(1.0), Resize((48, 40))),
    ],
)
def test_scaled_is_exact_unless_a_bilinear_resize_comes_first(load, tmp_path, transforms) -> None:
    pytest.importorskip("torch")
    photos = [datasets.photo(number, 500, 480) for number in range(2)]
    assert difference(load, photos, tmp_path, transforms, "scaled") == (0, 0, 0)


def test_scaled_rows_go_on_to_other_transforms(load, tmp_path) -> None:
    pytest.importorskip("torch")
    photos = [datasets.photo(number, 500, 480) for number in range(2)]
    plain = rows(load, photos, tmp_path, Resize((48, 40)), decode="scaled")
    assert (plain != rows(load, photos, tmp_path, Resize((48, 40)))).any(), "it is reduced"
    transforms = (Resize((48, 40)), feedline.RandomVerticalFlip(1.0), feedline.RandomInvert(1.0))
    assert (rows(load, photos, tmp_path, *transforms, decode="scaled") == 255 - plain[:, ::-1]).all()


@pytest.mark.parametrize("decode", ["exact", "fast"])
def test_what_is_missing_is_not_of_the_image_before(load, tmp_path, decode) -> None:
    """A progressive file that lacks scans has the same pixels wherever it stands."""
    folder = os.environ.get("FEEDLINE_PHOTOS")
    photos = sorted((Path(folder) / "small").glob("*.jpg")) if folder else []
    if len(photos) < 36:
        pytest.skip("FEEDLINE_PHOTOS names no folder of real photos")
    small = opened(photos[5].read_bytes()).convert("RGB")
    small.thumbnail((209, 209))
    whole = encoded(small, "JPEG", quality=90, progressive=True, subsampling=2)
    cut = whole[: len(whole) * 35 // 100]
    others = [photo.read_bytes() for photo in photos[30:36]]
    image = feedline.Image("jpg", Resize((20, 33), "nearest"), decode=decode, truncated="lenient")

    bodies = [body for other in others for body in (other, cut, cut)]
    datasets.write_shard(tmp_path / "a.tar", [(f"{number:05d}.jpg", body) for number, body in enumerate(bodies)])
    (only,) = load(str(tmp_path / "a.tar"), fields={"image": image}, shuffle=False, batch_size=len(bodies))
    found = numpy.asarray(only["image"])
    places = [place for place, body in enumerate(bodies) if body is cut]
    assert (found[places] == found[places[0]]).all()


def test_fast_is_close(load, tmp_path) -> None:
    pytest.importorskip("torch")
    photos = [datasets.photo(number, 200, 180) for number in range(4)]
    mean, _, most = difference(load, photos, tmp_path, (CenterCrop(150),), "fast")
    assert 0 < mean < 3 and most <= 80


@pytest.mark.parametrize("turned", [False, True])
def test_scaled_over_large_photos(load, tmp_path, turned) -> None:
    """The figures that the documentation of ``decode`` states."""
    pytest.importorskip("torch")
    folder = Path(os.environ.get("FEEDLINE_PHOTOS", "/nowhere"), "large")
    photos = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
    if not photos:
        pytest.skip("FEEDLINE_PHOTOS names no folder with large photos")
    choices = {}
    if turned:
        # The same pixels, told to be turned: a mirrored side starts within a reduced pixel.
        exif = Image.Exif()
        exif[0x112] = 7
        segment = b"Exif\0\0" + exif.tobytes().removeprefix(b"Exif\0\0")
        marker = b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big")
        photos = [photo[:2] + marker + segment + photo[2:] for photo in photos]
        choices = {"orientation": "apply"}
    transforms = (RandomResizedCrop(224), RandomHorizontalFlip())
    exact = rows(load, photos, tmp_path, *transforms, **choices).astype(numpy.int16)
    found = numpy.abs(rows(load, photos, tmp_path, *transforms, decode="scaled", **choices) - exact)
    for one, photo in zip(found, photos, strict=True):
        print(f"{opened(photo).size}: mean {one.mean():.3f}, 99.9 % {numpy.percentile(one, 99.9):.0f}, most {one.max()}")
    print(f"all: mean {found.mean():.3f}, 99.9 % {numpy.percentile(found, 99.9):.0f}, most {found.max()}")
    assert 0 < found.mean() < 0.4
    assert numpy.percentile(found, 99.9) <= 6
    assert found.max() <= 32


def test_lenient_rows_have_what_there_is_and_are_named(load, tmp_path, monkeypatch) -> None:
    pytest.importorskip("torch")
    whole = [datasets.photo(number, 90, 80) for number in range(6)]
    photos = list(whole)
    photos[1] = photos[1][: len(photos[1]) * 2 // 3]
    photos[4] = photos[4][:-2]
    batches: list = []
    found = rows(load, photos, tmp_path, CenterCrop((80, 90)), truncated="lenient", batch=batches)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for number, photo in enumerate(photos):
        assert (found[number] == numpy.asarray(opened(photo).convert("RGB"))).all(), number
    assert (found[1][-1] == 128).all(), "grey, as libjpeg fills it"
    assert (found[4] == numpy.asarray(opened(whole[4]))).all(), "only the end marker was missing"
    (batch,) = batches
    report = [(fault.fault_class, fault.key, fault.field, fault.row) for fault in batch.report]
    assert report == [("lenient", "00001", "image", 1), ("lenient", "00004", "image", 4)]
    assert all(fault.offset > 0 and "end-of-image" in fault.message for fault in batch.report[1:])


def test_a_cut_off_photo_is_a_bad_sample_unless_told(load, tmp_path) -> None:
    photo = datasets.photo(1, 90, 80)
    with pytest.raises(feedline.SampleError, match="truncated"):
        rows(load, [photo[:-2]], tmp_path, CenterCrop(8))
    with pytest.raises(feedline.SampleError, match="truncated"):
        rows(load, [photo[:60]], tmp_path, CenterCrop(8), truncated="lenient")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_turns_image_and_mask_together(load, tmp_path, orientation) -> None:
    pytest.importorskip("torch")
    exif = Image.Exif()
    exif[0x112] = orientation
    classes = numpy.zeros((40, 64), numpy.uint8)
    classes[:20, :32], classes[20:, 32:] = 1, 2
    # The image shows its mask: red where class 1 is, blue where class 2 is.
    shown = numpy.stack([255 * (classes == 1), 0 * classes, 255 * (classes == 2)], axis=-1).astype(numpy.uint8)
    photo = encoded(Image.fromarray(shown), "JPEG", quality=100, subsampling=0, exif=exif)
    datasets.write_shard(tmp_path / "a.tar", [("0.jpg", photo), ("0.png", encoded(Image.fromarray(classes), "PNG"))])
    transforms = (RandomResizedCrop((96, 80), scale=(0.5, 0.9)), RandomHorizontalFlip())
    fields = {
        "image": feedline.Image("jpg", *transforms, orientation="apply"),
        "plain": feedline.Image("jpg", CenterCrop((64, 64)), orientation="apply"),
        "mask": feedline.Mask("png", like="image"),
    }
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False, batch_size=1)
    image = numpy.asarray(batch["image"])[0].transpose(1, 2, 0).astype(int)
    mask = numpy.asarray(batch["mask"])[0]
    seen = numpy.where(image[..., 0] > 128, 1, numpy.where(image[..., 2] > 128, 2, 0))
    assert (seen == mask).mean() > 0.95, "they differ along the edges only"
    turned = ImageOps.exif_transpose(opened(photo))
    expected = numpy.asarray(turned.crop(((turned.width - 64) // 2, (turned.height - 64) // 2,
                                          (turned.width + 64) // 2, (turned.height + 64) // 2)))  # fmt: skip
    assert (numpy.asarray(batch["plain"])[0].transpose(1, 2, 0) == expected).all()


@pytest.mark.parametrize("orientation", range(2, 9))
def test_orientation_comes_before_every_transform(load, tmp_path, orientation) -> None:
    """What is told to be turned gives the rows of what is turned already."""
    pytest.importorskip("torch")
    exif = Image.Exif()
    exif[0x112] = orientation
    classes = numpy.random.default_rng(1).integers(0, 9, (45, 70), dtype=numpy.uint8)
    photo = encoded(opened(datasets.photo(3, 70, 45)), "JPEG", exif=exif)
    mask = Image.fromarray(classes)
    turned_photo = encoded(ImageOps.exif_transpose(opened(photo)), "PNG")
    mask_with_exif = mask.copy()
    mask_with_exif.getexif()[0x112] = orientation
    turned_mask = encoded(ImageOps.exif_transpose(mask_with_exif), "PNG")
    transforms = (
        feedline.RandomVerticalFlip(1.0), feedline.Pad((3, 1, 2, 5), padding_mode="reflect"),
        feedline.RandomAffine(30, (0.1, 0.2)), feedline.RandomChoice([feedline.RandomRotation((20, 40))]),
        feedline.ColorJitter(0.4, 0.4, 0.4, 0.1), feedline.RandomErasing(1.0), CenterCrop((44, 52)),
    )  # fmt: skip
    found = []
    for name, image, classes_of_it in (("told", photo, encoded(mask, "PNG")), ("turned", turned_photo, turned_mask)):
        datasets.write_shard(tmp_path / f"{name}.tar", [("0.jpg", image), ("0.png", classes_of_it)])
        fields = {
            "image": feedline.Image("jpg", *transforms, orientation="apply"),
            "mask": feedline.Mask("png", like="image"),
        }
        (batch,) = load(str(tmp_path / f"{name}.tar"), fields=fields, shuffle=False, batch_size=1, seed=9)
        found.append((numpy.asarray(batch["image"]).copy(), numpy.asarray(batch["mask"]).copy()))
    for told, turned in zip(*found, strict=True):
        assert (told == turned).all()


def test_a_mask_that_is_turned_already_is_named(load, tmp_path) -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    photo = encoded(Image.new("RGB", (64, 40)), "JPEG", exif=exif)
    mask = encoded(Image.new("L", (40, 64)), "PNG")
    datasets.write_shard(tmp_path / "a.tar", [("0.jpg", photo), ("0.png", mask)])
    fields = {"image": feedline.Image("jpg", CenterCrop(8), orientation="apply"), "mask": feedline.Mask("png", like="image")}
    with pytest.raises(feedline.SampleError, match="turned already"):
        list(load(str(tmp_path / "a.tar"), fields=fields, shuffle=False, batch_size=1))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_dropped_or_laid_over_a_colour(load, tmp_path, format) -> None:
    pytest.importorskip("torch")
    levels = numpy.random.default_rng(0).integers(0, 256, (24, 32, 4), dtype=numpy.uint8)
    image = Image.fromarray(levels, "RGBA")
    body = encoded(image, format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    dropped = rows(load, [body], tmp_path, CenterCrop((24, 32)))[0]
    assert (dropped == levels[..., :3]).all()
    canvas = Image.new("RGB", image.size, (250, 3, 90))
    canvas.paste(image, mask=image.getchannel("A"))
    laid = rows(load, [body], tmp_path, CenterCrop((24, 32)), background=(250, 3, 90))[0]
    assert (laid == numpy.asarray(canvas)).all()


@pytest.mark.parametrize(
    "choice",
    [
        {"decode": "quick"},
        {"truncated": "skip"},
        {"orientation": 6},
        {"background": (1, 2)},
        {"background": (0, 0, 256)},
        {"background": "red"},
    ],
)
def test_choices_that_there_are_not(choice) -> None:
    with pytest.raises(ValueError, match=next(iter(choice))):
        feedline.Image("jpg", CenterCrop(8), **choice)
