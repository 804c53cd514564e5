"""Parameters have torchvision's distributions: ours, with a fixed seed, against torchvision's own draws
(Kolmogorov-Smirnov) or against the chances that its tables give (chi-square). There are 5000 of ours, so that a run stays
short; ``FEEDLINE_DRAWS=100000`` draws that many, and 10 000 of torchvision's.

Limits are those of a test that fails one time in 10 000; the seed is fixed, so it fails always or never.
"""

from __future__ import annotations

import collections
import json
import math
import os

import numpy
import pytest

import feedline
from feedline import _native

torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")
from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix  # noqa: E402

COUNT = int(os.environ.get("FEEDLINE_DRAWS", "5000"))
#: Draws of torchvision, which are slow.
THEIRS = min(10_000, max(1000, COUNT // 10))
WIDTH, HEIGHT = 500, 375
SEED = 20


def steps(*transforms, count: int = COUNT, size=(WIDTH, HEIGHT)):
    """The steps of each sample, without the first, which reads the image."""
    specs = json.dumps([transform.spec() for transform in (*transforms, feedline.CenterCrop(size[::-1]))])
    return [sample[1:] for sample in json.loads(_native.draw_steps(specs, *size, SEED, 0, 0, count))]


def stages(*transforms, count: int = COUNT, size=(WIDTH, HEIGHT)):
    specs = json.dumps([transform.spec() for transform in transforms])
    return [sample[0]["resample"] for sample in json.loads(_native.draw_steps(specs, *size, SEED, 0, 0, count))]


def theirs(transform, size=(WIDTH, HEIGHT)):
    """torchvision's parameters."""
    torch.manual_seed(SEED)
    image = [torch.empty((3, size[1], size[0]), dtype=torch.uint8)]
    return [transform.make_params(image) for _ in range(THEIRS)]


def same(ours, others) -> None:
    """Two samples of one distribution, by Kolmogorov and Smirnov."""
    ours, others = numpy.sort(numpy.asarray(ours, float)), numpy.sort(numpy.asarray(others, float))
    # What differs in the last bits only is one value.
    ours, others = numpy.round(ours, 9), numpy.round(others, 9)
    places = numpy.concatenate([ours, others])
    cumulated = [numpy.searchsorted(values, places, side="right") / len(values) for values in (ours, others)]
    distance = numpy.abs(cumulated[0] - cumulated[1]).max()
    # sqrt(-ln(alpha / 2) / 2) for alpha = 1e-4.
    limit = 2.225 * math.sqrt((len(ours) + len(others)) / (len(ours) * len(others)))
    assert distance <= limit, f"{distance:.4f} apart, the limit is {limit:.4f}"


def expected_counts(found: collections.Counter, chances: dict) -> None:
    """Counts that go with chances, by chi-square; chances that are 0 must not happen."""
    total = sum(found.values())
    assert set(found) <= {name for name, chance in chances.items() if chance > 0}, found
    square = sum((found[name] - total * chance) ** 2 / (total * chance) for name, chance in chances.items() if chance > 0)
    freedom = sum(chance > 0 for chance in chances.values()) - 1
    if freedom == 0:
        # One outcome alone is possible, and no other happened.
        assert total > 0
        return
    # Wilson and Hilferty's approximation of the quantile at 1 - 1e-4.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert square <= limit, f"chi-square {square:.1f} of {freedom}, the limit is {limit:.1f}"


def test_random_resized_crop() -> None:
    ours = numpy.array([stage["source"] for stage in stages(feedline.RandomResizedCrop(224))])
    others = theirs(v2.RandomResizedCrop(224))
    boxes = numpy.array([[crop[word] for word in ("left", "top", "width", "height")] for crop in others])
    for ours_column, others_column in zip(ours.T, boxes.T, strict=True):
        same(ours_column, others_column)
    same(ours[:, 2] * ours[:, 3], boxes[:, 2] * boxes[:, 3])
    same(ours[:, 2] / ours[:, 3], boxes[:, 2] / boxes[:, 3])


@pytest.mark.parametrize("size", [(32, 32), (32, 20), (100, 50)])
def test_random_crop(size) -> None:
    options = {"padding": (1, 2, 3, 4), "pad_if_needed": True}
    ours = numpy.array([stage["window"] for stage in stages(feedline.RandomCrop(32, **options), size=size)])
    others = theirs(v2.RandomCrop(32, **options), size)
    same(ours[:, 0], [crop["left"] - crop["padding"][0] for crop in others])
    same(ours[:, 1], [crop["top"] - crop["padding"][1] for crop in others])


def named(samples, name: str):
    return [next(iter(step["operation"].values())) for sample in samples for step in sample if name in step["operation"]]


def test_color_jitter() -> None:
    arguments = {"brightness": 0.4, "contrast": (0.2, 3.0), "saturation": 1.5, "hue": (-0.1, 0.3)}
    samples = steps(feedline.ColorJitter(**arguments))
    others = theirs(v2.ColorJitter(**arguments))
    for name in arguments:
        same(named(samples, name), [parameters[f"{name}_factor"] for parameters in others])
    orders = collections.Counter(tuple(next(iter(step["operation"])) for step in sample) for sample in samples)
    assert len(orders) == 24
    expected_counts(orders, dict.fromkeys(orders, 1 / 24))


def test_gaussian_blur() -> None:
    ours = [blur["sigma"] for blur in named(steps(feedline.GaussianBlur(5, (0.3, 4.0))), "blur")]
    same(ours, [parameters["sigma"][0] for parameters in theirs(v2.GaussianBlur(5, (0.3, 4.0)))])


def test_random_erasing() -> None:
    ours = named(steps(feedline.RandomErasing(1.0)), "erase")
    others = [parameters for parameters in theirs(v2.RandomErasing(1.0)) if parameters["v"] is not None]
    for name, letter in (("top", "i"), ("left", "j"), ("height", "h"), ("width", "w")):
        same([erase[name] for erase in ours], [parameters[letter] for parameters in others])


def test_random_affine_and_rotation() -> None:
    arguments = {"degrees": (-10, 40), "translate": (0.1, 0.3), "scale": (0.5, 2.0), "shear": (-5, 10, -20, 3)}
    ours = numpy.array([warp["coefficients"] for warp in named(steps(feedline.RandomAffine(**arguments)), "warp")])
    others = [
        _get_inverse_affine_matrix([0.0, 0.0], p["angle"], list(p["translate"]), p["scale"], list(p["shear"]))
        for p in theirs(v2.RandomAffine(**arguments))
    ]
    matrices = numpy.array(others)
    for ours_place, others_place in ((0, 0), (1, 1), (3, 3), (4, 4)):
        same(ours[:, ours_place], matrices[:, others_place])
    # The shift, seen from the middle of the image.
    middle = numpy.array([WIDTH / 2, HEIGHT / 2])
    for row in range(2):
        same(ours[:, 3 * row : 3 * row + 2] @ middle + ours[:, 3 * row + 2] - middle[row], matrices[:, 3 * row + 2])
    turned = numpy.array([warp["coefficients"] for warp in named(steps(feedline.RandomRotation((-30, 70))), "warp")])
    angles = numpy.degrees(numpy.arctan2(-turned[:, 1], turned[:, 0]))
    same(angles * numpy.sign(angles @ numpy.ones(COUNT)), [p["angle"] for p in theirs(v2.RandomRotation((-30, 70)))])


def test_random_perspective() -> None:
    ours = numpy.array([warp["coefficients"] for warp in named(steps(feedline.RandomPerspective(0.5, 1.0)), "warp")])
    others = numpy.array([p["coefficients"] for p in theirs(v2.RandomPerspective(0.5, 1.0))])
    for ours_column, others_column in zip(ours.T, others.T, strict=True):
        # Theirs are solved in 32 bits.
        same(numpy.round(ours_column, 6), numpy.round(others_column, 6))


@pytest.mark.parametrize(("distortion", "size"), [(0.3, (40, 30)), (1.0, (201, 151)), (1.0, (200, 150))])
def test_corners_of_a_perspective(distortion: float, size) -> None:
    """Each of the eight numbers is even over its range, as torchvision draws it: back from the projection to its corners."""
    drawn = named(steps(feedline.RandomPerspective(distortion, 1.0), size=size), "warp")
    far = numpy.array(size) - 1
    starts = numpy.array([[0, 0], [far[0], 0], far, [0, far[1]]])
    bounds = (distortion * (numpy.array(size) // 2)).astype(int) + 1
    found: list[collections.Counter] = [collections.Counter() for _ in range(8)]
    flat = 0
    for warp in drawn:
        projection = numpy.array([*warp["coefficients"], 1]).reshape(3, 3)
        if warp["coefficients"] == [1, 0, 0, 0, 1, 0, 0, 0] or abs(numpy.linalg.det(projection)) < 1e-12:
            flat += 1
            continue
        back = numpy.linalg.inv(projection) @ numpy.c_[starts, numpy.ones(4)].T
        ends = (back[:2] / back[2]).T
        for corner, (end, start) in enumerate(zip(numpy.rint(ends), starts, strict=True)):
            assert numpy.abs(ends[corner] - end).max() < 1e-3
            for axis in range(2):
                found[2 * corner + axis][int(abs(end[axis] - start[axis]))] += 1
    # Three corners on one line, or all as they were: these do not tell where they are.
    assert flat <= COUNT / 500
    for number, counts in enumerate(found):
        chances = dict.fromkeys(range(bounds[number % 2]), 1 / bounds[number % 2])
        expected_counts(counts, chances)


@pytest.mark.parametrize(
    "make",
    [
        feedline.RandomGrayscale,
        feedline.RandomEqualize,
        feedline.RandomAutocontrast,
        feedline.RandomInvert,
        lambda p: feedline.RandomSolarize(100, p),
        lambda p: feedline.RandomPosterize(3, p),
        lambda p: feedline.RandomAdjustSharpness(2, p),
        lambda p: feedline.RandomPerspective(0.5, p),
        lambda p: feedline.RandomApply([feedline.RandomInvert(1.0)], p),
        lambda p: feedline.RandomChoice([feedline.RandomInvert(1.0), feedline.RandomInvert(0.0)], [3 * p, 3 - 3 * p]),
    ],
)
def test_chances(make) -> None:
    for p in (0.0, 0.3, 1.0):
        found = collections.Counter(bool(sample) for sample in steps(make(p), count=COUNT // 5))
        expected_counts(found, {True: p, False: 1 - p})


@pytest.mark.parametrize(("make", "name"), [(feedline.RandomHorizontalFlip, "mirrored"), (feedline.RandomVerticalFlip, "upside_down")])
def test_flips(make, name) -> None:
    found = collections.Counter(stage[name] for stage in stages(make(0.3), feedline.CenterCrop(8)))
    expected_counts(found, {True: 0.3, False: 0.7})


def test_choices_by_weight() -> None:
    factors = (2.0, 3.0, 4.0)
    choice = feedline.RandomChoice([feedline.RandomAdjustSharpness(factor, 1.0) for factor in factors], (1, 0, 5))
    found = collections.Counter(named(steps(choice), "sharpness"))
    expected_counts(found, {2.0: 1 / 6, 3.0: 0.0, 4.0: 5 / 6})


#: torchvision's names of the operations that are not moves, in ours.
NAMES = {
    "Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness",
    "Posterize": "posterize", "Solarize": "solarize", "AutoContrast": "autocontrast", "Equalize": "equalize",
    "Invert": "invert",
}  # fmt: skip
MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def label(step) -> tuple[str, float | None]:
    """An operation with its strength to three digits; moves by their map, to two."""
    operation = step["operation"]
    if isinstance(operation, str):
        return operation, None
    name, value = next(iter(operation.items()))
    if name == "warp":
        return name, tuple(numpy.round(numpy.add(value["coefficients"][:6], 0.0), 2) + 0.0)
    return name, round(float(value), 3)


def their_label(name: str, magnitude: float, size) -> tuple[str, float | None]:
    """What torchvision does for an operation of its policies, as `label` has it."""
    width, height = size
    if name not in MOVES:
        if name in ("AutoContrast", "Equalize", "Invert"):
            return NAMES[name], None
        value = {"Posterize": magnitude, "Solarize": 255 * magnitude}.get(name, 1 + magnitude)
        return NAMES[name], round(float(numpy.float32(value)), 3)
    degrees = math.degrees(math.atan(magnitude))
    centre, angle, shift, shear = [0.0, 0.0], 0.0, [0, 0], [0.0, 0.0]
    if name.startswith("Shear"):
        centre = [-width / 2, -height / 2]
        shear = [degrees, 0.0] if name == "ShearX" else [0.0, degrees]
    elif name.startswith("Translate"):
        shift = [int(magnitude), 0] if name == "TranslateX" else [0, int(magnitude)]
    else:
        angle = -magnitude
    a, b, x, d, e, y = _get_inverse_affine_matrix(centre, angle, shift, 1.0, shear)
    x += width / 2 - a * width / 2 - b * height / 2
    y += height / 2 - d * width / 2 - e * height / 2
    return "warp", tuple(numpy.round([a, b, x, d, e, y], 2) + 0.0)


def strengths(entry, bins: int, size, step: int | None = None) -> list[float]:
    """The strengths of an operation of torchvision's space, with their signs; all of them, or that of one step."""
    make, is_signed = entry
    values = make(bins, size[1], size[0])
    if values is None:
        return [0.0]
    values = [float(value) for value in (values if step is None else values[step : step + 1])]
    return [sign * value for value in values for sign in ((1, -1) if is_signed else (1,))]


def add(chances, name, values, share, size) -> None:
    for value in values:
        chances[their_label(name, value, size)] += share / len(values)


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_auto_augment(policy) -> None:
    size = (64, 48)
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(policy))
    chances = collections.defaultdict(float)
    for pair in theirs._policies:
        for name, p, step in pair:
            add(chances, name, strengths(theirs._AUGMENTATION_SPACE[name], 10, size, step), p / 25, size)
    total = sum(chances.values())
    found = collections.Counter(label(step) for sample in steps(feedline.AutoAugment(policy), size=size) for step in sample)
    assert abs(sum(found.values()) / COUNT - total) < 0.02
    expected_counts(found, {name: chance / total for name, chance in chances.items()})


def test_rand_augment() -> None:
    size = (64, 48)
    theirs = v2.RandAugment(2, 9, 31)
    chances = collections.defaultdict(float)
    for name, entry in theirs._AUGMENTATION_SPACE.items():
        if name != "Identity":
            add(chances, name, strengths(entry, 31, size, 9), 1 / 13, size)
    samples = steps(feedline.RandAugment(2, 9, 31), size=size)
    expected_counts(collections.Counter(label(step) for sample in samples for step in sample), chances)
    lengths = collections.Counter(len(sample) for sample in samples)
    expected_counts(lengths, {0: 1 / 196, 1: 26 / 196, 2: 169 / 196})


def test_trivial_augment_wide() -> None:
    size = (64, 48)
    theirs = v2.TrivialAugmentWide(31)
    chances = collections.defaultdict(float)
    for name, entry in theirs._AUGMENTATION_SPACE.items():
        if name != "Identity":
            add(chances, name, strengths(entry, 31, size), 1 / 13, size)
    samples = steps(feedline.TrivialAugmentWide(31), size=size)
    expected_counts(collections.Counter(label(step) for sample in samples for step in sample), chances)
    expected_counts(collections.Counter(len(sample) for sample in samples), {0: 1 / 14, 1: 13 / 14})
