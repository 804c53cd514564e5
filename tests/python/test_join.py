"""Datasets joined by key: pairs for super-resolution as BasicSR stores them, tars with their masks, and what does not fit."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
from PIL import Image

import feedline

lmdb = pytest.importorskip("lmdb")

SCALE = 4


def png(pixels: numpy.ndarray[Any, Any]) -> bytes:
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "PNG")
    return target.getvalue()


def create_lmdb(path: Path, images: dict[str, numpy.ndarray[Any, Any]]) -> str:
    """A database as BasicSR's ``make_lmdb_from_imgs`` makes it: PNGs under their names without ending, ``meta_info.txt``."""
    lines = []
    with lmdb.open(str(path), map_size=1 << 28) as environment, environment.begin(write=True) as transaction:
        for key, pixels in images.items():
            transaction.put(key.encode("ascii"), png(pixels))
            height, width, channels = pixels.shape
            lines.append(f"{key}.png ({height},{width},{channels}) 1\n")
    (path / "meta_info.txt").write_text("".join(lines))
    return str(path)


def pairs(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Small images, and larger ones in which each pixel is a block: a crop of one tells which crop the other must be."""
    random = numpy.random.default_rng(count)
    small, large = {}, {}
    for number in range(count):
        height, width = (int(side) for side in random.integers(20, 40, 2))
        pixels = random.integers(0, 256, (height, width, 3), dtype=numpy.uint8)
        small[f"{number:04d}_s001"] = pixels
        large[f"{number:04d}_s001"] = pixels.repeat(SCALE, 0).repeat(SCALE, 1)
    return small, large


def fields(*transforms: Any, **options: Any) -> dict[str, feedline.fields.Field]:
    return {
        "lq": feedline.Image("lq.image", *transforms, **options),
        "gt": feedline.Image("gt.image", like="lq", scale=SCALE, **options),
    }


@pytest.fixture
def databases(tmp_path: Path) -> dict[str, str]:
    small, large = pairs(12)
    # The order of the second is another, and so is that of its meta file.
    return {
        "lq": create_lmdb(tmp_path / "LQ.lmdb", small),
        "gt": create_lmdb(tmp_path / "GT.lmdb", dict(reversed(large.items()))),
    }


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "transforms",
    [
        (feedline.RandomCrop(16), feedline.RandomHorizontalFlip(), feedline.RandomVerticalFlip()),
        (feedline.RandomCrop(15), feedline.RandomApply([feedline.RandomRotation((90, 90))], 0.5)),
        (feedline.CenterCrop(13), feedline.RandomHorizontalFlip()),
        (feedline.RandomCrop(40, pad_if_needed=True, fill=9), feedline.RandomVerticalFlip()),
        (feedline.RandomCrop(18, 3, padding_mode="symmetric"),),
        (feedline.RandomCrop(16), feedline.ColorJitter(0.4, 0, 0.4, 0.1), feedline.RandomErasing(1.0, value=(1, 2, 3))),
    ],
)
def test_the_larger_image_gets_the_same_crop(load, databases, transforms) -> None:
    loader = load(feedline.Join(databases), fields=fields(*transforms), batch_size=4)
    seen = 0
    for _ in range(2):
        for batch in loader:
            small, large = (numpy.asarray(batch[name]).astype(int) for name in ("lq", "gt"))
            assert large.shape[2:] == tuple(SCALE * side for side in small.shape[2:])
            assert (large == small.repeat(SCALE, 2).repeat(SCALE, 3)).all()
            seen += len(small)
    assert seen == 24


@pytest.mark.parametrize(
    "transforms",
    [
        (feedline.RandomCrop(17), feedline.RandomAffine(30, (0.2, 0.2), (0.7, 1.4), 10)),
        (feedline.RandomCrop(19), feedline.RandomAffine(20, shear=(-5, 5, -9, 9), interpolation="bilinear", center=(3, 8))),
        (feedline.RandomCrop(20), feedline.RandomPerspective(0.4, 1.0)),
        (feedline.Resize((12, 9)), feedline.RandomVerticalFlip()),
        (feedline.Resize(17), feedline.CenterCrop(14)),
        (feedline.RandomResizedCrop(16), feedline.RandomHorizontalFlip()),
    ],
)
def test_the_larger_image_shows_the_same(load, tmp_path, transforms) -> None:
    """Colours tell the place, 6 levels a pixel of the smaller image: blocks of the larger one have them in the mean."""
    small, large = {}, {}
    for number in range(8):
        height, width = 24 + number, 40 - number
        for images, scale in ((small, 1), (large, SCALE)):
            rows, columns = numpy.mgrid[0 : scale * height, 0 : scale * width]
            slopes = [6 * (rows + 0.5) / scale, 6 * (columns + 0.5) / scale, 255 + 0 * rows]
            images[str(number)] = numpy.rint(numpy.stack(slopes, -1)).astype(numpy.uint8)
    paths = {"lq": create_lmdb(tmp_path / "lq", small), "gt": create_lmdb(tmp_path / "gt", large)}
    loader = load(feedline.Join(paths), fields=fields(*transforms))
    for _ in range(3):
        for batch in loader:
            one, other = (numpy.asarray(batch[name]).astype(float) for name in ("lq", "gt"))
            rows, _, height, width = one.shape
            means = other.reshape(rows, 3, height, SCALE, width, SCALE).mean((3, 5))
            # Pixels and blocks at the border of the picture are mixed with black.
            is_inside = (one[:, 2] == 255) & (means[:, 2] == 255)
            assert is_inside.mean() > 0.4
            assert (numpy.abs(one - means).max(1)[is_inside] <= 3.6).all()


def test_crops_are_basicsr_s(load, tmp_path) -> None:
    """Every place of the smaller image, and only those times the scale in the larger one, as ``paired_random_crop`` draws."""
    rows, columns = numpy.mgrid[0 : 6 * SCALE, 0 : 5 * SCALE]
    large = numpy.stack([rows, columns, 0 * rows], -1).astype(numpy.uint8)
    paths = {
        "lq": create_lmdb(tmp_path / "lq", {"a": large[::SCALE, ::SCALE].copy()}),
        "gt": create_lmdb(tmp_path / "gt", {"a": large}),
    }
    loader = load(feedline.Join(paths), fields=fields(feedline.RandomCrop(3)), weights=[1], epoch_length=400)
    places = {}
    for batch in loader:
        for small, large_crop in zip(numpy.asarray(batch["lq"]), numpy.asarray(batch["gt"]), strict=True):
            corner = tuple(int(value) for value in large_crop[:2, 0, 0])
            assert tuple(small[:2, 0, 0]) == corner
            places[corner] = places.get(corner, 0) + 1
    assert set(places) == {(SCALE * top, SCALE * left) for top in range(4) for left in range(3)}


def test_samples_and_their_order_are_those_of_the_first(load, databases) -> None:
    loader = load(feedline.Join(databases), fields=fields(feedline.CenterCrop(8)), shuffle=False)
    assert [key for batch in loader for key in batch.sample_keys] == [f"{number:04d}_s001" for number in range(12)]
    assert len(loader.dataset) == 12


@pytest.mark.parametrize("reader", [None, "pread"])
def test_rows_do_not_depend_on_how_they_are_read(load, databases, serve, reader) -> None:
    options = [] if reader is None else ["--reader", reader]
    private = load(feedline.Join(databases), fields=fields(feedline.RandomCrop(9)))
    shared = load(feedline.Join(databases), fields=fields(feedline.RandomCrop(9)), sidecar=serve(*options).socket)
    for one, other in zip(private, shared, strict=True):
        assert one.sample_keys == other.sample_keys
        assert (numpy.asarray(one["gt"]) == numpy.asarray(other["gt"])).all()


def test_keys_that_differ_are_refused_or_left_out(load, tmp_path, caplog) -> None:
    small, large = pairs(8)
    del small["0001_s001"], large["0005_s001"], large["0006_s001"]
    paths = {"lq": create_lmdb(tmp_path / "lq", small), "gt": create_lmdb(tmp_path / "gt", large)}
    both = ('lq has 2 of 7 keys that gt lacks: "0005_s001", "0006_s001"', 'gt has 1 of 6 keys that lq lacks: "0001_s001"')
    with pytest.raises(ValueError, match="do not have the same keys") as refused:
        len(load(feedline.Join(paths), fields=fields(feedline.CenterCrop(8))))
    assert all(words in str(refused.value) for words in both)
    caplog.set_level(logging.INFO, "feedline")
    loader = load(feedline.Join(paths, unpaired="drop"), fields=fields(feedline.CenterCrop(8)), batch_size=2)
    keys = {key for batch in loader for key in batch.sample_keys}
    assert keys == {"0000_s001", "0002_s001", "0003_s001", "0004_s001", "0007_s001"}
    assert "2 of 7 samples lack a part" in told(caplog) and all(words in told(caplog) for words in both)


def test_keys_by_template(load, tmp_path) -> None:
    small, large = pairs(5)
    small = {f"{key}x4": pixels for key, pixels in small.items()}
    paths = {"lq": create_lmdb(tmp_path / "lq", small), "gt": create_lmdb(tmp_path / "gt", large)}
    with pytest.raises(ValueError, match="no key is in all parts.*give keys="):
        len(load(feedline.Join(paths), fields=fields(feedline.CenterCrop(8))))
    joined = feedline.Join(paths, keys={"lq": "{}x4"})
    for batch in load(joined, fields=fields(feedline.CenterCrop(8))):
        assert all(key.endswith("x4") for key in batch.sample_keys)
        assert (numpy.asarray(batch["gt"])[:, :, ::SCALE, ::SCALE] == numpy.asarray(batch["lq"])).all()


def test_sizes_that_do_not_fit_are_bad_samples(load, tmp_path) -> None:
    small, large = pairs(6)
    large["0002_s001"] = large["0002_s001"][:-SCALE].copy()
    large["0004_s001"] = large["0004_s001"][:-1].copy()
    paths = {"lq": create_lmdb(tmp_path / "lq", small), "gt": create_lmdb(tmp_path / "gt", large)}
    loader = load(feedline.Join(paths), fields=fields(feedline.CenterCrop(8)), error_budget=1.0, shuffle=True)
    faults = {fault.key: fault for batch in loader for fault in batch.report}
    assert set(faults) == {"0002_s001", "0004_s001"}
    fault = faults["0002_s001"]
    assert fault.field == "gt" and fault.fault_class == "corrupt" and "scale=4 makes" in fault.message
    # The sample is that of the first part; the bytes are the other's.
    assert fault.shard.startswith(paths["lq"]) and f"of {paths['gt']}" in fault.message
    with pytest.raises(feedline.SampleError, match="0002_s001"):
        list(load(feedline.Join(paths), fields=fields(feedline.CenterCrop(8)), shuffle=False))


def test_meta_file_of_other_images(load, tmp_path, caplog) -> None:
    small, large = pairs(3)
    paths = {"lq": create_lmdb(tmp_path / "lq", small), "gt": create_lmdb(tmp_path / "gt", large)}
    meta = Path(paths["gt"], "meta_info.txt")
    lines = meta.read_text().splitlines()
    meta.write_text("\n".join(["0000_s001.png (7,9,3) 1", *lines[1:], "extra.png (7,9,3) 1"]))
    caplog.set_level(logging.INFO, "feedline")
    len(load(feedline.Join(paths), fields=fields(feedline.CenterCrop(8))))
    words = told(caplog)
    assert "without a key, or the second for one: 1" in words and "extra" in words
    assert "size that is not the image's" in words and "listed as 9x7" in words


def test_state_knows_both_databases(load, databases) -> None:
    def make() -> feedline.Loader:
        return load(feedline.Join(databases), fields=fields(feedline.RandomCrop(9)), batch_size=2)

    loader = make()
    rows = iter(loader)
    next(rows), next(rows)
    state = loader.state_dict()
    assert len(state["databases"]) == 2
    rest = [batch.sample_keys for batch in rows]
    resumed = make()
    resumed.load_state_dict(state)
    assert [batch.sample_keys for batch in resumed] == rest
    for loader in (loader, resumed):
        loader.close()
    with lmdb.open(databases["gt"], map_size=1 << 28) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"another", b"x")
    meta = Path(databases["gt"], "meta_info.txt")
    meta.write_text(meta.read_text() + "another.png (1,1,3) 1\n")
    resumed = load(feedline.Join(databases, unpaired="drop"), fields=fields(feedline.RandomCrop(9)), batch_size=2)
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match="GT.lmdb.*other keys"):
        next(iter(resumed))


@pytest.mark.parametrize("kind", ["tar", "folder"])
def test_images_and_masks_of_different_sets(load, tmp_path, kind) -> None:
    random = numpy.random.default_rng(4)
    images, masks = {}, {}
    for number in range(20):
        plane = random.integers(0, 21, (24, 30), dtype=numpy.uint8)
        images[f"{number:03d}"], masks[f"{number:03d}"] = png(numpy.stack([plane * 5] * 3, -1)), png(plane)
    if kind == "tar":
        keys = list(images)
        for shard in range(3):
            datasets.write_shard(tmp_path / f"im-{shard}.tar", [(f"{key}.png", images[key]) for key in keys[shard::3]])
        for shard in range(2):
            members = [(f"{key}.seg.png", masks[key]) for key in keys[shard::2]]
            datasets.write_shard(tmp_path / f"mask-{shard}.tar", members)
        join = feedline.Join({"image": f"{tmp_path}/im-{{0..2}}.tar", "mask": f"{tmp_path}/mask-*.tar"})
        sources = ("image.png", "mask.*png")
    else:
        for name, bodies in (("images", images), ("masks", masks)):
            (tmp_path / name).mkdir()
            for key, body in bodies.items():
                (tmp_path / name / f"{key}.png").write_bytes(body)
        join = feedline.Join({"image": tmp_path / "images", "mask": tmp_path / "masks"})
        sources = ("image.png", "mask.png")
    wanted = {
        "image": feedline.Image(sources[0], feedline.RandomCrop(16), feedline.RandomHorizontalFlip()),
        "mask": feedline.Mask(sources[1], like="image"),
    }
    loader = load(join, fields=wanted)
    keys = []
    for batch in loader:
        keys += batch.sample_keys
        assert (numpy.asarray(batch["image"])[:, 0] == 5 * numpy.asarray(batch["mask"])).all()
    assert sorted(keys) == sorted(images)


def test_what_cannot_be(load, databases, tmp_path) -> None:
    def opens(join: Any, words: str, wanted: Any = None, **options: Any) -> None:
        with pytest.raises(ValueError, match=words):
            len(load(join, fields=wanted or fields(feedline.CenterCrop(8)), **options))

    join = feedline.Join(databases)
    opens(join, "no sample has any of the fields asked for: image", {"image": feedline.Image("image", feedline.CenterCrop(8))})
    opens(join, "lq.image", {"image": feedline.Image("gt.png", feedline.CenterCrop(8))})
    mixed = {"image": feedline.Image(["lq.image", "gt.image"], feedline.CenterCrop(8))}
    opens(join, "of several parts of the join", mixed)
    opens(join, "names no image field", {"gt": feedline.Image("gt.image", like="lq")})
    datasets.write_shard(tmp_path / "t.tar", [(f"a/{name}.png", b"x") for name in ("1", "1.b", "2")])
    with pytest.raises(TypeError, match="2 to 4 parts"):
        feedline.Join({"lq": "x"})
    with pytest.raises(ValueError, match="letters a to z"):
        feedline.Join({"lq.a": "x", "gt": "y"})
    with pytest.raises(ValueError, match="no part of the Join"):
        feedline.Join({"lq": "x", "gt": "y"}, keys={"a": "{}"})
    with pytest.raises(ValueError, match="scale= belongs to like="):
        feedline.Image("png", feedline.CenterCrop(8), scale=2)
    with pytest.raises(ValueError, match="leave those of this one out"):
        feedline.Image("png", feedline.CenterCrop(8), like="lq")
