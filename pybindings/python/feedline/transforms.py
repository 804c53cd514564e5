"""What happens to images and masks on their way into a batch; names, arguments and defaults of torchvision's ``v2``, so
that a pipeline can be copied over.

Everything here is a description: the sidecar does the work, and `spec` is the JSON that it is told. Parameters are drawn
from the loader's seed, the epoch, the sample and the place of the transform in its list, so they do not depend on
workers or ranks. Masks follow what moves pixels, and pass over colours and boxes painted over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Longest side of an output.
MAX_SIDE = 16_384

#: A colour: one number for all channels, or red, green and blue.
Fill = int | Sequence[int] | None


class Transform:
    """One operation on an image; base of those below."""

    fixes_size = False

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        raise NotImplementedError


def _pair(size: object, owner: str, name: str = "size") -> tuple[int, int]:
    """(height, width) from an int or a sequence of one or two, as torchvision reads it."""
    if isinstance(size, int) and not isinstance(size, bool):
        sides: tuple[object, ...] = (size, size)
    elif isinstance(size, Sequence) and not isinstance(size, str | bytes) and len(size) in (1, 2):
        sides = tuple(size) * (2 // len(size))
    else:
        raise TypeError(f"{owner}: {name} must be an int or a sequence of one or two, (height, width), got {size!r}")
    return _side(sides[0], owner), _side(sides[1], owner)


def _side(side: object, owner: str) -> int:
    if not isinstance(side, int) or isinstance(side, bool):
        raise TypeError(f"{owner}: a side is an int, got {side!r}")
    if not 1 <= side <= MAX_SIDE:
        raise ValueError(f"{owner}: a side must be 1 to {MAX_SIDE} pixels, got {side}")
    return side


def _number(value: object, name: str, owner: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{owner}: {name} must hold finite numbers, got {value!r}")
    return float(value)


def _numbers(value: object, name: str, owner: str, lengths: Sequence[int]) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) not in lengths:
        words = " or ".join(map(str, lengths))
        raise TypeError(f"{owner}: {name} must be a sequence of {words} numbers, got {value!r}")
    return tuple(_number(number, name, owner) for number in value)


def _range(value: object, name: str, owner: str) -> tuple[float, float]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise TypeError(f"{owner}: {name} must be a sequence of two, (min, max), got {value!r}")
    low, high = (_number(bound, name, owner) for bound in value)
    if not 0 < low <= high:
        raise ValueError(f"{owner}: {name} must be (min, max) with 0 < min <= max, got {value!r}")
    return low, high


def _angles(value: object, name: str, owner: str) -> tuple[float, float]:
    """(min, max) from one number, which spans both directions, or from two."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        most = _number(value, name, owner)
        if most < 0:
            raise ValueError(f"{owner}: {name} must not be negative if it is one number, got {value!r}")
        return -most, most
    low, high = _numbers(value, name, owner, (2,))
    if low > high:
        raise ValueError(f"{owner}: {name} must be (min, max) with min <= max, got {value!r}")
    return low, high


def _probability(p: object, owner: str) -> float:
    if not 0 <= _number(p, "p", owner) <= 1:
        raise ValueError(f"{owner}: p is a probability, 0 to 1, got {p!r}")
    return float(p)  # type: ignore[arg-type]


def _interpolation(value: object, owner: str) -> str:
    """Name of an interpolation: torchvision's enum, its value, or Pillow's number."""
    name = getattr(value, "value", value)
    names: dict[object, str] = {0: "nearest", 2: "bilinear", 3: "bicubic", "nearest-exact": "nearest"}
    name = names.get(name, name)
    if name not in ("nearest", "bilinear", "bicubic"):
        raise ValueError(f"{owner}: interpolation {value!r} is not offered: take nearest, bilinear or bicubic")
    return str(name)


def _resampling(interpolation: object, antialias: object, owner: str) -> dict[str, str]:
    """What a resize is told beside its size; nothing for bilinear with antialias, the default."""
    name = _interpolation(interpolation, owner)
    if antialias not in (True, False, None):
        raise TypeError(f"{owner}: antialias must be True or False, got {antialias!r}")
    if antialias is not False or name == "nearest":
        return {} if name == "bilinear" else {"resampling": name}
    if name == "bicubic":
        raise ValueError(f"{owner}: bicubic without antialias is not offered: leave antialias out, or take bilinear")
    return {"resampling": "bilinear_aliased"}


def _fill(fill: object, owner: str) -> tuple[int, int, int] | None:
    if fill is None:
        return None
    channels = (fill,) * 3 if isinstance(fill, int | float) else fill
    if not isinstance(channels, Sequence) or isinstance(channels, str) or len(channels) not in (1, 3):
        raise TypeError(f"{owner}: fill must be a number or a sequence of three, red, green and blue, got {fill!r}")
    colour = [int(_number(channel, "fill", owner)) for channel in tuple(channels) * (3 // len(channels))]
    if not all(0 <= channel <= 255 for channel in colour):
        raise ValueError(f"{owner}: fill is a colour, 0 to 255, got {fill!r}")
    return colour[0], colour[1], colour[2]


def _warp(interpolation: object, fill: object, owner: str, center: object = None) -> dict[str, Any]:
    name = _interpolation(interpolation, owner)
    if name == "bicubic":
        raise ValueError(f"{owner}: interpolation {interpolation!r} is not offered: take nearest or bilinear")
    spec: dict[str, Any] = {"interpolation": name, "fill": _fill(fill, owner)}
    if center is not None:
        spec["center"] = _numbers(center, "center", owner, (2,))
    return spec


def _padding(padding: object, owner: str) -> tuple[int, int, int, int]:
    """(left, top, right, bottom), as torchvision reads it."""
    sides: tuple[Any, ...]
    if padding is None:
        return 0, 0, 0, 0
    if isinstance(padding, int):
        sides = (padding,)
    elif isinstance(padding, Sequence) and len(padding) in (1, 2, 4):
        sides = tuple(padding)
    else:
        raise TypeError(f"{owner}: padding must be an int or a sequence of 1, 2 or 4, got {padding!r}")
    for side in sides:
        if not isinstance(side, int) or isinstance(side, bool) or not 0 <= side <= MAX_SIDE:
            raise ValueError(f"{owner}: padding is 0 to {MAX_SIDE} pixels a side, got {padding!r}")
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom


def _padding_mode(mode: object, owner: str) -> str:
    if mode not in ("constant", "edge", "reflect", "symmetric"):
        raise ValueError(f"{owner}: padding_mode must be constant, edge, reflect or symmetric, got {mode!r}")
    return str(mode)


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """A random box of the image, resized.

    Args:
        size: Output size, an int for a square or (height, width), in pixels.
        scale: Range of the box's share of the image's area.
        ratio: Range of the box's width / height, drawn uniformly in its logarithm.
        interpolation: Nearest, bilinear or bicubic.
        antialias: Whether bilinear looks at all pixels when it shrinks; bicubic always does.
    """

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: Any = "bilinear"
    antialias: bool | None = True
    fixes_size = True

    def __post_init__(self) -> None:
        _, share = _range(self.scale, "scale", "RandomResizedCrop")
        if share > 1:
            raise ValueError(f"RandomResizedCrop: scale is a share of the image's area, at most 1, got {self.scale!r}")
        _range(self.ratio, "ratio", "RandomResizedCrop")
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        resampling = _resampling(self.interpolation, self.antialias, "RandomResizedCrop")
        size = _pair(self.size, "RandomResizedCrop")
        box = {"size": size, "scale": tuple(self.scale), "ratio": tuple(self.ratio)}
        return {"random_resized_crop": {**box, **resampling}}


@dataclass(frozen=True)
class Resize(Transform):
    """The whole image resized.

    Args:
        size: An int or a sequence of one for the shorter side, the other keeping the ratio; or (height, width).
        interpolation: Nearest, bilinear or bicubic.
        max_size: Not offered.
        antialias: Whether bilinear looks at all pixels when it shrinks; bicubic always does.
    """

    size: int | Sequence[int]
    interpolation: Any = "bilinear"
    max_size: None = None
    antialias: bool | None = True

    def __post_init__(self) -> None:
        if self.max_size is not None:
            raise ValueError("Resize: max_size is not offered: give (height, width), or follow with CenterCrop")
        self.spec()

    @property
    def fixes_size(self) -> bool:  # type: ignore[override]
        """Whether every output has one size."""
        return not isinstance(self.size, int) and len(self.size) == 2

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        resampling = _resampling(self.interpolation, self.antialias, "Resize")
        height, width = _pair(self.size, "Resize")
        to = {"exact": (height, width)} if self.fixes_size else {"short_side": height}
        return {"resize": {"to": to, **resampling}}


@dataclass(frozen=True)
class CenterCrop(Transform):
    """The middle of the image, padded with zeros where the image is smaller.

    Args:
        size: Output size, an int for a square or (height, width), in pixels.
    """

    size: int | Sequence[int]
    fixes_size = True

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"center_crop": {"size": _pair(self.size, "CenterCrop")}}


@dataclass(frozen=True)
class RandomCrop(Transform):
    """A random box of one size, of the image with borders added; an image that is too small is a bad sample.

    Args:
        size: Output size, an int for a square or (height, width), in pixels.
        padding: Border: for all sides, (left and right, top and bottom), or (left, top, right, bottom).
        pad_if_needed: Whether images that are too small get wider borders.
        fill: Colour of the border in mode constant.
        padding_mode: ``constant``, ``edge``, ``reflect`` or ``symmetric``.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: Fill = 0
    padding_mode: str = "constant"
    fixes_size = True

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        owner = "RandomCrop"
        return {
            "random_crop": {
                "size": _pair(self.size, owner),
                "padding": _padding(self.padding, owner),
                "pad_if_needed": bool(self.pad_if_needed),
                "fill": _fill(self.fill, owner) or (0, 0, 0),
                "mode": _padding_mode(self.padding_mode, owner),
            }
        }


@dataclass(frozen=True)
class Pad(Transform):
    """A border added.

    Args:
        padding: For all sides, (left and right, top and bottom), or (left, top, right, bottom), in pixels.
        fill: Colour of the border in mode constant.
        padding_mode: ``constant``, ``edge``, ``reflect`` or ``symmetric``.
    """

    padding: int | Sequence[int]
    fill: Fill = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        mode = _padding_mode(self.padding_mode, "Pad")
        fill = _fill(self.fill, "Pad") or (0, 0, 0)
        return {"pad": {"padding": _padding(self.padding, "Pad"), "fill": fill, "mode": mode}}


@dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """The image mirrored left to right with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_horizontal_flip": {"p": _probability(self.p, "RandomHorizontalFlip")}}


@dataclass(frozen=True)
class RandomVerticalFlip(Transform):
    """The image mirrored top to bottom with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_vertical_flip": {"p": _probability(self.p, "RandomVerticalFlip")}}


@dataclass(frozen=True)
class RandomRotation(Transform):
    """The image turned by a random angle, counter-clockwise; its size stays.

    Args:
        degrees: Range of the angle, (min, max), or a number for both directions.
        interpolation: Nearest or bilinear.
        expand: Not offered: rows of a batch have one size.
        center: (x, y) that stays in place, from the upper left corner; the middle if left out.
        fill: Colour of what comes from outside the image.
    """

    degrees: float | Sequence[float]
    interpolation: Any = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Fill = 0

    def __post_init__(self) -> None:
        if self.expand:
            raise ValueError("RandomRotation: expand=True is not offered: the rows of a batch have one size; Pad before")
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        owner = "RandomRotation"
        warp = _warp(self.interpolation, self.fill, owner, self.center)
        return {"random_rotation": {"degrees": _angles(self.degrees, "degrees", owner), "warp": warp}}


@dataclass(frozen=True)
class RandomAffine(Transform):
    """The image turned, moved, scaled and sheared at random; its size stays.

    Args:
        degrees: Range of the angle, (min, max), or a number for both directions.
        translate: Largest shift as a share of (width, height).
        scale: Range of the scale.
        shear: Range along x, as a number or two; or along x and y, as four, in degrees.
        interpolation: Nearest or bilinear.
        fill: Colour of what comes from outside the image.
        center: (x, y) that stays in place, from the upper left corner; the middle if left out.
    """

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: Any = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        owner = "RandomAffine"
        shear: tuple[float, ...] | None = None
        if isinstance(self.shear, Sequence) and len(self.shear) == 4:
            shear = _numbers(self.shear, "shear", owner, (4,))
        elif self.shear is not None:
            shear = (*_angles(self.shear, "shear", owner), 0.0, 0.0)
        return {
            "random_affine": {
                "degrees": _angles(self.degrees, "degrees", owner),
                "translate": self.translate and _numbers(self.translate, "translate", owner, (2,)),
                "scale": self.scale and _range(self.scale, "scale", owner),
                "shear": shear,
                "warp": _warp(self.interpolation, self.fill, owner, self.center),
            }
        }


@dataclass(frozen=True)
class RandomPerspective(Transform):
    """The corners moved inwards at random, with probability ``p``; the size stays.

    Args:
        distortion_scale: Largest shift of a corner as a share of half the side.
        p: Probability.
        interpolation: Nearest or bilinear.
        fill: Colour of what comes from outside the image.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Any = "bilinear"
    fill: Fill = 0

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        owner = "RandomPerspective"
        distortion = _number(self.distortion_scale, "distortion_scale", owner)
        if not 0 <= distortion <= 1:
            raise ValueError(f"{owner}: distortion_scale is 0 to 1, got {self.distortion_scale!r}")
        warp = _warp(self.interpolation, self.fill, owner)
        return {"random_perspective": {"distortion": distortion, "p": _probability(self.p, owner), "warp": warp}}


@dataclass(frozen=True)
class RandomErasing(Transform):
    """A random box painted over, with probability ``p``. After `ToDtype` and `Normalize` it paints floats.

    Args:
        p: Probability.
        scale: Range of the box's share of the image's area.
        ratio: Range of the box's height / width, drawn uniformly in its logarithm.
        value: Its colour, a number or three; or ``"random"``: noise, even over 0 to 255, for floats normal.
        inplace: Of no meaning here; taken for torchvision's sake.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | str = 0.0
    inplace: bool = False

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        owner = "RandomErasing"
        low, high = _numbers(self.scale, "scale", owner, (2,))
        if not 0 <= low <= high <= 1:
            raise ValueError(f"{owner}: scale is (min, max) with 0 <= min <= max <= 1, got {self.scale!r}")
        value: tuple[float, ...] | None
        if isinstance(self.value, str):
            if self.value != "random":
                raise ValueError(f"{owner}: value is a number, three, or \"random\", got {self.value!r}")
            value = None
        elif isinstance(self.value, Sequence):
            value = _numbers(self.value, "value", owner, (1, 3))
            value *= 3 // len(value)
        else:
            value = (_number(self.value, "value", owner),) * 3
        ratio = _range(self.ratio, "ratio", owner)
        return {"random_erasing": {"p": _probability(self.p, owner), "scale": (low, high), "ratio": ratio, "value": value}}


@dataclass(frozen=True)
class ToDtype(Transform):
    """Values become floating-point numbers; only `Normalize` and `RandomErasing` may follow.

    They are worked out in 32 bits and rounded once. NumPy has no bfloat16: there its bits come as uint16.

    Args:
        dtype: torch's float32, float16 or bfloat16, or its name.
        scale: Whether 0 to 255 become 0 to 1.
    """

    dtype: Any = "float32"
    scale: bool = False

    def __post_init__(self) -> None:
        if self.dtype_name not in ("float32", "float16", "bfloat16"):
            raise ValueError(
                f"ToDtype: dtype is float32, float16 or bfloat16, got {self.dtype!r}; without ToDtype images are uint8"
            )

    @property
    def dtype_name(self) -> str:
        """Name of the type."""
        return str(self.dtype).removeprefix("torch.")

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"to_dtype": {"dtype": self.dtype_name, "scale": bool(self.scale)}}


@dataclass(frozen=True)
class Normalize(Transform):
    """From each channel its mean is taken, and the rest divided by its deviation; after `ToDtype`.

    Args:
        mean: Of red, green and blue.
        std: Of red, green and blue; not 0.
        inplace: Of no meaning here; taken for torchvision's sake.
    """

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = False

    def __post_init__(self) -> None:
        if 0.0 in self.spec()["normalize"]["std"]:
            raise ValueError(f"Normalize: std must not be 0, got {self.std!r}")

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        mean, std = (_numbers(value, name, "Normalize", (3,)) for name, value in (("mean", self.mean), ("std", self.std)))
        return {"normalize": {"mean": mean, "std": std}}
