"""Each transform against torchvision's functional ``v2`` on uint8 tensors, on the parameters that Feedline drew.

`BOUNDS` is the table of the documentation: how far a value may be from torchvision's, and the share of values that may
be farther than one level. Nearest picks are judged by the share of pixels that differ at all: they do where a place is
next to the border of two pixels, which 32-bit grids round to either side.
"""

from __future__ import annotations

import io

import datasets
import numpy
import pytest
from PIL import Image

import feedline

torch = pytest.importorskip("torch")
F = pytest.importorskip("torchvision.transforms.v2.functional")
from feedline.parity import reference  # noqa: E402
from feedline.parity.reference import BOUNDS, NEAREST_SHARE, by_torchvision, kept, named  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402

WIDTH, HEIGHT = 67, 53
COUNT = 24
SEED = 5


def picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A smooth picture with noise, lossless."""
    random = numpy.random.default_rng(number)
    coarse = random.integers(0, 256, (5, 6, 3), dtype=numpy.uint8)
    smooth = numpy.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    pixels = (smooth + random.integers(-9, 10, smooth.shape)).clip(0, 255).astype(numpy.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "PNG")
    return target.getvalue()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    bodies = [picture(number) for number in range(COUNT)]
    datasets.write_shard(folder / "a.tar", [(f"{number:03d}.png", body) for number, body in enumerate(bodies)])
    return str(folder / "a.tar"), [numpy.asarray(Image.open(io.BytesIO(body))) for body in bodies]


def drawn(transforms, count: int = COUNT, size=(WIDTH, HEIGHT), view: int = 0, seed: int = SEED):
    """The steps of each sample."""
    return reference.drawn(transforms, size, seed, 0, count, view)


def rows_of(load, pattern, transforms, **options) -> numpy.ndarray:
    """All rows of an epoch, in NHWC."""
    view = options.pop("view", 0)
    fields = {"image": feedline.Image("png", *transforms, view=view)}
    loader = load(pattern, fields=fields, seed=SEED, batch_size=8, shuffle=False, **options)
    return numpy.concatenate([batch["image"].permute(0, 2, 3, 1).float().numpy() for batch in loader])


def check(load, pictures, *transforms, names: set[str] | None = None) -> None:
    """Every row against torchvision's operations one by one; `names` must all have happened."""
    pattern, sources = pictures
    found = rows_of(load, pattern, transforms)
    seen: set[str] = set()
    bound, share, nearest = 0, 0.0, False
    differences = []
    for source, steps, row in zip(sources, drawn(transforms), found, strict=True):
        image = torch.from_numpy(source.copy()).permute(2, 0, 1)
        for step in steps:
            if "resample" in step:
                image = kept(step["resample"], image)
                continue
            name, parameters = named(step)
            seen.add(name)
            image = by_torchvision(name, parameters, image)
            if name == "warp" and parameters["interpolation"] == "nearest":
                nearest = True
                continue
            limits = BOUNDS["bilinear" if name == "warp" else name]
            bound, share = max(bound, limits[0]), max(share, limits[1])
        differences.append(numpy.abs(row - image.permute(1, 2, 0).float().numpy()))
    assert names is None or seen == names
    difference = numpy.stack(differences)
    if nearest:
        moved = (difference > bound).any(-1).mean()
        assert moved <= NEAREST_SHARE, f"{moved:.3%} of pixels differ"
    else:
        assert difference.max() <= bound, f"{difference.max()} levels, allowed {bound}"
        assert (difference > 1).mean() <= share


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (feedline.ColorJitter(brightness=0.9), "brightness"),
        (feedline.ColorJitter(brightness=(1.5, 4.0)), "brightness"),
        (feedline.ColorJitter(contrast=0.9), "contrast"),
        (feedline.ColorJitter(contrast=(1.5, 4.0)), "contrast"),
        (feedline.ColorJitter(saturation=0.9), "saturation"),
        (feedline.ColorJitter(saturation=(1.5, 4.0)), "saturation"),
        (feedline.ColorJitter(hue=0.5), "hue"),
        (feedline.RandomGrayscale(1.0), "grayscale"),
        (feedline.Grayscale(), "grayscale"),
        (feedline.RandomSolarize(128, 1.0), "solarize"),
        (feedline.RandomSolarize(0, 1.0), "solarize"),
        (feedline.RandomSolarize(99.5, 1.0), "solarize"),
        (feedline.RandomPosterize(0, 1.0), "posterize"),
        (feedline.RandomPosterize(3, 1.0), "posterize"),
        (feedline.RandomPosterize(8, 1.0), "posterize"),
        (feedline.RandomEqualize(1.0), "equalize"),
        (feedline.RandomAutocontrast(1.0), "autocontrast"),
        (feedline.RandomInvert(1.0), "invert"),
        (feedline.RandomAdjustSharpness(0.0, 1.0), "sharpness"),
        (feedline.RandomAdjustSharpness(2.7, 1.0), "sharpness"),
        (feedline.GaussianBlur(3), "blur"),
        (feedline.GaussianBlur((23, 5), (0.1, 5.0)), "blur"),
        (feedline.RandomErasing(1.0, value=(10, 20, 255)), "erase"),
        (feedline.Pad((3, 4, 5, 6), padding_mode="reflect"), "extend"),
        (feedline.Pad(7, padding_mode="symmetric"), "extend"),
        (feedline.RandomCrop((HEIGHT, WIDTH), 6, padding_mode="edge"), "extend"),
        (feedline.RandomPerspective(0.6, 1.0), "warp"),
        (feedline.RandomPerspective(0.6, 1.0, fill=(90, 0, 200)), "warp"),
        (feedline.RandomPerspective(0.6, 1.0, interpolation="nearest", fill=7), "warp"),
        (feedline.RandomPerspective(0.0, 1.0), "warp"),
        (feedline.RandomPerspective(1.0, 1.0, fill=200), "warp"),
        (feedline.RandomRotation(180, InterpolationMode.BILINEAR, fill=99), "warp"),
        (feedline.RandomRotation((30, 60)), "warp"),
        (feedline.RandomAffine(20, (0.2, 0.3), (0.5, 2.0), (-20, 20, -10, 10), "bilinear", 55), "warp"),
    ],
)
def test_one_operation(load, pictures, transform, name) -> None:
    check(load, pictures, feedline.CenterCrop((HEIGHT, WIDTH)), transform, names={name})


def is_clear(coefficients, size, interpolation) -> numpy.ndarray:
    """Where 32 bits are enough to tell a pixel's place: not next to infinity, nor, for nearest, to the border of two pixels."""
    a, b, c, d, e, f, g, h = coefficients
    x, y = numpy.meshgrid(numpy.arange(size[0]) + 0.5, numpy.arange(size[1]) + 0.5)
    depth = g * x + h * y + 1
    with numpy.errstate(divide="ignore", invalid="ignore"):
        places = numpy.stack([(a * x + b * y + c) / depth, (d * x + e * y + f) / depth])
        is_at_border = (numpy.abs(places - numpy.rint(places)) < 1e-4).any(0)
    return (numpy.abs(depth) > 1e-4) & ~(is_at_border & (interpolation == "nearest"))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2), (3, 2), (4, 5)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_perspective_of_a_few_pixels(load, tmp_path, size, interpolation) -> None:
    """Where corners fall together no projection exists, and the picture stays as it is."""
    width, height = size
    bodies = [picture(number, width, height) for number in range(COUNT)]
    datasets.write_shard(tmp_path / "a.tar", [(f"{number:03d}.png", body) for number, body in enumerate(bodies)])
    transforms = (feedline.RandomPerspective(1.0, 1.0, interpolation, fill=50), feedline.CenterCrop((height, width)))
    rows = rows_of(load, str(tmp_path / "a.tar"), transforms)
    judged = 0
    for body, steps, row in zip(bodies, drawn(transforms, size=size), rows, strict=True):
        source = numpy.asarray(Image.open(io.BytesIO(body)))
        ((name, warp),) = [named(step) for step in steps if "operation" in step]
        assert name == "warp" and numpy.isfinite(warp["coefficients"]).all()
        if warp["coefficients"] == [1, 0, 0, 0, 1, 0, 0, 0]:
            assert (row == source).all()
        else:
            expected = by_torchvision(name, warp, torch.from_numpy(source.copy()).permute(2, 0, 1))
            is_far = numpy.abs(row - expected.permute(1, 2, 0).float().numpy()).max(-1) > 1
            assert not (is_far & is_clear(warp["coefficients"], size, interpolation)).any(), (warp, is_far)
            judged += 1
    assert judged > 0 or min(size) == 1


@pytest.mark.parametrize(
    "transforms",
    [
        (feedline.Pad((3, 4, 5, 6), fill=(1, 2, 3)), feedline.CenterCrop(60)),
        (feedline.RandomCrop(64, 8, pad_if_needed=True, fill=77), feedline.RandomVerticalFlip(), feedline.RandomHorizontalFlip()),
        (feedline.RandomVerticalFlip(1.0), feedline.RandomCrop(58, 4, fill=9), feedline.CenterCrop(50)),
        (feedline.RandomInvert(1.0), feedline.RandomVerticalFlip(), feedline.CenterCrop(70)),
    ],
)
def test_crops_pads_and_flips_are_exact(load, pictures, transforms) -> None:
    check(load, pictures, *transforms)


@pytest.mark.parametrize(
    ("resize", "pillow"),
    [
        (feedline.Resize((40, 31)), Image.Resampling.BILINEAR),
        (feedline.Resize((40, 31), "bicubic"), Image.Resampling.BICUBIC),
        (feedline.Resize((140, 99), InterpolationMode.BICUBIC), Image.Resampling.BICUBIC),
        (feedline.Resize((20, 101), "nearest"), Image.Resampling.NEAREST),
    ],
)
def test_resizes_are_pillow_s_to_the_bit(load, pictures, resize, pillow) -> None:
    pattern, sources = pictures
    height, width = resize.size
    for source, row in zip(sources, rows_of(load, pattern, [resize]), strict=True):
        assert (row == numpy.asarray(Image.fromarray(source).resize((width, height), pillow))).all()


def test_bilinear_without_antialias_is_torch_s(load, pictures) -> None:
    pattern, sources = pictures
    for size in ((20, 31), (90, 80)):
        for source, row in zip(sources, rows_of(load, pattern, [feedline.Resize(size, antialias=False)]), strict=True):
            expected = F.resize(torch.from_numpy(source.copy()).permute(2, 0, 1), list(size), antialias=False)
            assert numpy.abs(row - expected.permute(1, 2, 0).numpy()).max() <= 1


@pytest.mark.parametrize(
    "policy",
    [
        feedline.AutoAugment("imagenet"),
        feedline.AutoAugment("cifar10"),
        feedline.AutoAugment("svhn"),
        feedline.RandAugment(3, 19),
        feedline.TrivialAugmentWide(),
    ],
)
def test_policies_are_their_operations(load, pictures, policy) -> None:
    """Chains differ more than one operation, since equalize and contrast spread a level: so in few pixels only.

    A strength of 20 would shear by a fifth, where every fifth place lies exactly between two pixels.
    """
    pattern, sources = pictures
    transforms = (feedline.CenterCrop((HEIGHT, WIDTH)), policy)
    far = []
    for source, steps, row in zip(sources, drawn(transforms), rows_of(load, pattern, transforms), strict=True):
        image = torch.from_numpy(source.copy()).permute(2, 0, 1)
        for step in steps[1:]:
            name, parameters = named(step)
            image = by_torchvision(name, parameters, image)
        far.append((numpy.abs(row - image.permute(1, 2, 0).float().numpy()) > 2).mean())
    assert numpy.mean(far) <= 0.01, far


def test_views_differ_and_masks_follow_theirs(load, tmp_path) -> None:
    members = []
    for number in range(8):
        body = picture(number)
        plane = numpy.asarray(Image.open(io.BytesIO(body)))[:, :, 0].copy()
        target = io.BytesIO()
        Image.fromarray(plane).save(target, "PNG")
        members += [(f"{number}.png", body), (f"{number}.seg.png", target.getvalue())]
    datasets.write_shard(tmp_path / "a.tar", members)
    moves = (
        feedline.RandomCrop(64, 12, pad_if_needed=True),
        feedline.RandomVerticalFlip(),
        feedline.RandomApply([feedline.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10)], 0.8),
        feedline.RandomPerspective(0.3, 0.5, "nearest"),
        feedline.Pad(3, padding_mode="symmetric"),
    )
    fields = {
        "one": feedline.Image("png", *moves),
        "two": feedline.Image("png", *moves, view=1),
        "mask": feedline.Mask("seg.png", like="two"),
    }
    for batch in load(str(tmp_path / "a.tar"), fields=fields):
        one, two, mask = (numpy.asarray(batch[name]) for name in fields)
        assert (two[:, 0] == mask).all()
        assert (one[:, 0] != mask).any(axis=(1, 2)).all()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_are_torch_s(load, pictures, layout, dtype) -> None:
    pattern, sources = pictures
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    transforms = [feedline.CenterCrop((HEIGHT, WIDTH)), feedline.ToDtype(getattr(torch, dtype), scale=True)]
    image = feedline.Image("png", *transforms, feedline.Normalize(mean, std))
    (batch,) = load(pattern, fields={"image": image}, batch_size=COUNT, shuffle=False, layout=layout)
    assert batch["image"].dtype == getattr(torch, dtype) and batch["image"].shape == (COUNT, 3, HEIGHT, WIDTH)
    source = torch.from_numpy(numpy.stack(sources)).permute(0, 3, 1, 2)
    expected = F.normalize(F.to_dtype(source, torch.float32, scale=True), mean, std)
    # Worked out in 32 bits and rounded once.
    assert torch.equal(batch["image"], expected.to(getattr(torch, dtype)))


def test_floats_can_be_erased(load, pictures) -> None:
    pattern, sources = pictures
    for value in (0.0, (1.5, -2.0, 0.25), "random"):
        transforms = (
            feedline.CenterCrop((HEIGHT, WIDTH)),
            feedline.ToDtype(torch.float32, scale=True),
            feedline.RandomErasing(1.0, value=value),
        )
        rows = rows_of(load, pattern, transforms)
        noise = []
        for source, steps, row in zip(sources, drawn(transforms), rows, strict=True):
            erase = steps[-1]["erase_floats"]
            box = numpy.s_[erase["top"] : erase["top"] + erase["height"], erase["left"] : erase["left"] + erase["width"]]
            expected = source * numpy.float32(1 / 255)
            if value == "random":
                noise.append(row[box].ravel())
                expected[box] = row[box]
            else:
                expected[box] = value
            assert (row == expected).all()
        if noise:
            values = numpy.concatenate(noise)
            assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05


def test_defaults_have_the_type_of_the_rows(load, tmp_path) -> None:
    datasets.write_shard(tmp_path / "a.tar", [("0.png", picture(0)), ("1.txt", b"no picture")])
    for dtype in ("float32", "float16", "bfloat16"):
        image = feedline.Image("png", feedline.CenterCrop(8), feedline.ToDtype(dtype), default=-0.3)
        (batch,) = load(str(tmp_path / "a.tar"), fields={"image": image}, shuffle=False)
        assert (batch["image"][1] == torch.tensor(-0.3, dtype=getattr(torch, dtype))).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: feedline.ColorJitter(hue=0.6), "hue"),
        (lambda: feedline.ColorJitter(brightness=-1.0), "brightness"),
        (lambda: feedline.GaussianBlur(4), "odd"),
        (lambda: feedline.Grayscale(1), "num_output_channels=3"),
        (lambda: feedline.RandomRotation(-3), "negative"),
        (lambda: feedline.RandomRotation(3, expand=True), "expand"),
        (lambda: feedline.RandomAffine(3, interpolation="bicubic"), "nearest or bilinear"),
        (lambda: feedline.Resize(3, "lanczos"), "lanczos"),
        (lambda: feedline.Resize(3, "bicubic", antialias=False), "bicubic without antialias"),
        (lambda: feedline.Pad(3, padding_mode="wrap"), "padding_mode"),
        (lambda: feedline.Pad(-3), "padding"),
        (lambda: feedline.RandomErasing(value="noise"), "random"),
        (lambda: feedline.RandomPosterize(9), "bits"),
        (lambda: feedline.RandomSolarize(300), "threshold"),
        (lambda: feedline.RandAugment(magnitude=31), "magnitude"),
        (lambda: feedline.AutoAugment("mnist"), "policy"),
        (lambda: feedline.RandomChoice([feedline.RandomInvert()], [0.0]), "weights"),
        (lambda: feedline.ToDtype(torch.uint8), "float32"),
        (lambda: feedline.Normalize((0, 0, 0), (1, 0, 1)), "std"),
        (lambda: feedline.Image("png", feedline.CenterCrop(3), view=-1), "view"),
    ],
)
def test_arguments_are_refused_by_name(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_transforms_without_sense_together_are_refused(load, pictures) -> None:
    pattern, _ = pictures
    crop, floats = feedline.CenterCrop(8), feedline.ToDtype()
    for transforms, words in [
        ((crop, feedline.Normalize((0, 0, 0), (1, 1, 1))), "put ToDtype"),
        ((crop, floats, feedline.RandomInvert()), "only Normalize and RandomErasing"),
        ((crop, feedline.RandomApply([feedline.Pad(1)])), "no transform fixes the size"),
    ]:
        with pytest.raises(ValueError, match=words):
            load(pattern, fields={"image": feedline.Image("png", *transforms)})
