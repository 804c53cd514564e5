"""What a batch is made of: fields, and the transforms of images and masks.

`values` has the fields that are neither pictures nor single numbers. Everything here is a description: the sidecar does
the work, and `spec` is the JSON that it is told. Names and checks of transforms follow torchvision's ``v2``, so that a
pipeline can be copied over.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Images of more pixels are refused from their header, before memory is taken: Pillow's limit for an error.
MAX_PIXELS = 2 * 89_478_485

#: Longest side of an output.
MAX_SIDE = 16_384


def _pair(size: object, owner: str) -> tuple[int, int]:
    """(height, width) from an int or a sequence of one or two, as torchvision reads it."""
    if isinstance(size, int) and not isinstance(size, bool):
        sides: tuple[object, ...] = (size, size)
    elif isinstance(size, Sequence) and not isinstance(size, str | bytes) and len(size) in (1, 2):
        sides = tuple(size) * (2 // len(size))
    else:
        raise TypeError(f"{owner}: size must be an int or a sequence of one or two, (height, width), got {size!r}")
    return _side(sides[0], owner), _side(sides[1], owner)


def _side(side: object, owner: str) -> int:
    if not isinstance(side, int) or isinstance(side, bool):
        raise TypeError(f"{owner}: a side is an int, got {side!r}")
    if not 1 <= side <= MAX_SIDE:
        raise ValueError(f"{owner}: a side must be 1 to {MAX_SIDE} pixels, got {side}")
    return side


def _range(value: object, name: str, owner: str) -> tuple[float, float]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise TypeError(f"{owner}: {name} must be a sequence of two, (min, max), got {value!r}")
    low, high = (_number(bound, name, owner) for bound in value)
    if not 0 < low <= high:
        raise ValueError(f"{owner}: {name} must be (min, max) with 0 < min <= max, got {value!r}")
    return low, high


def _number(value: object, name: str, owner: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{owner}: {name} must hold finite numbers, got {value!r}")
    return float(value)


def _only_bilinear(interpolation: object, antialias: object, owner: str) -> None:
    name = getattr(interpolation, "value", interpolation)
    if name not in ("bilinear", 2):
        raise ValueError(
            f"{owner}: interpolation {interpolation!r} is not offered: Feedline resizes bilinearly with antialias, "
            "as Pillow does; leave the argument out"
        )
    if antialias not in (True, None):
        raise ValueError(f"{owner}: antialias=False is not offered: Feedline resizes as Pillow does; leave it out")


class Transform:
    """One operation on an image; base of those below."""

    fixes_size = False

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """A random box of the image, resized bilinearly with antialias.

    Args:
        size: Output size, an int for a square or (height, width), in pixels.
        scale: Range of the box's share of the image's area.
        ratio: Range of the box's width / height, drawn uniformly in its logarithm.
        interpolation: Only bilinear is offered.
        antialias: Only True is offered.
    """

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: Any = "bilinear"
    antialias: bool | None = True
    fixes_size = True

    def __post_init__(self) -> None:
        _only_bilinear(self.interpolation, self.antialias, "RandomResizedCrop")
        _, share = _range(self.scale, "scale", "RandomResizedCrop")
        if share > 1:
            raise ValueError(f"RandomResizedCrop: scale is a share of the image's area, at most 1, got {self.scale!r}")
        _range(self.ratio, "ratio", "RandomResizedCrop")
        _pair(self.size, "RandomResizedCrop")

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        size = _pair(self.size, "RandomResizedCrop")
        return {"random_resized_crop": {"size": size, "scale": tuple(self.scale), "ratio": tuple(self.ratio)}}


@dataclass(frozen=True)
class Resize(Transform):
    """The whole image resized bilinearly with antialias.

    Args:
        size: An int or a sequence of one for the shorter side, the other keeping the ratio; or (height, width).
        interpolation: Only bilinear is offered.
        max_size: Not offered.
        antialias: Only True is offered.
    """

    size: int | Sequence[int]
    interpolation: Any = "bilinear"
    max_size: None = None
    antialias: bool | None = True

    def __post_init__(self) -> None:
        _only_bilinear(self.interpolation, self.antialias, "Resize")
        if self.max_size is not None:
            raise ValueError("Resize: max_size is not offered: give (height, width), or follow with CenterCrop")
        _pair(self.size, "Resize")

    @property
    def fixes_size(self) -> bool:  # type: ignore[override]
        """Whether every output has one size."""
        return not isinstance(self.size, int) and len(self.size) == 2

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        height, width = _pair(self.size, "Resize")
        return {"resize": {"to": {"exact": (height, width)} if self.fixes_size else {"short_side": height}}}


@dataclass(frozen=True)
class CenterCrop(Transform):
    """The middle of the image, padded with zeros where the image is smaller.

    Args:
        size: Output size, an int for a square or (height, width), in pixels.
    """

    size: int | Sequence[int]
    fixes_size = True

    def __post_init__(self) -> None:
        _pair(self.size, "CenterCrop")

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"center_crop": {"size": _pair(self.size, "CenterCrop")}}


@dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """The image mirrored left to right with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= _number(self.p, "p", "RandomHorizontalFlip") <= 1:
            raise ValueError(f"RandomHorizontalFlip: p is a probability, 0 to 1, got {self.p!r}")

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_horizontal_flip": {"p": float(self.p)}}


def checked_sources(value: object, owner: str) -> tuple[str, ...]:
    """Names of shard members, lower case, without a leading dot."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    if not names or not all(isinstance(name, str) and name.strip(".") for name in names):
        raise TypeError(
            f"{owner}: the first argument names the members of a shard to read, as in {owner}(\"cls\") or "
            f"{owner}([\"jpg\", \"png\"]), got {value!r}"
        )
    return tuple(name.lower().lstrip(".") for name in names)


class _Required:
    """Stands for no default: a sample without the field is bad."""

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


#: As a field's ``default``: there is none, and a sample that has none of the sources is bad, of class missing-field.
REQUIRED: Any = _Required()


class Field:
    """One entry of a batch; base of those below.

    All take ``default``: what a row gets whose sample has none of the sources. Such rows are counted, in
    ``defaulted`` of the metrics. Without a default such a sample is bad.
    """

    #: What `tensors` makes of the field: one of its ``FORMS``.
    form = "tensor"
    sources: tuple[str, ...]
    default: Any = REQUIRED

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON; ``layout`` is that of images."""
        raise NotImplementedError

    def default_bytes(self) -> bytes | None:
        """What the sidecar is told of the default."""
        return None if self.default is REQUIRED else self._default_bytes()

    def _default_bytes(self) -> bytes:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *map(repr, vars(self).values())))


class Image(Field):
    """An image: uint8, three channels, RGB.

    In a batch of torch tensors it has shape (N, 3, height, width), as a ``channels_last`` view of the slot; in a batch
    of NumPy arrays (N, height, width, 3). ``Loader(layout="NCHW")`` makes it contiguous (N, 3, height, width) in both.

    The format is what the first bytes say, never the name: JPEG, PNG, WebP, GIF, TIFF, BMP and PNM are decoded, of
    animations the first frame. Pixels are those of Pillow's ``Image.open(...).convert("RGB")``; only 16-bit grey is
    scaled to 8 bits where Pillow clips it, and colour profiles never cost a pixel.

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        transforms: Operations in order; together they must fix the output size.
        max_pixels: Images of more pixels are refused from their header.
        decode: How faithfully JPEGs are decoded. ``"exact"`` is Pillow's decode bit for bit, of the part that the
            transforms need. ``"scaled"`` reduces large ones by 2, 4 or 8 while decoding, as long as the box that is
            resized stays at least twice as large as what becomes of it, in both directions; smaller ones stay exact.
            Over 14 photos of 9 to 20 megapixels under ``RandomResizedCrop(224)`` values so differ from exact ones by 0.2
            in the mean, by at most 4 for 99.9 % of them, and by 16 at most (``tests/python/test_decode.py``).
            ``"fast"`` takes libjpeg's fast transform and repeats colours instead of interpolating them.
        truncated: What becomes of JPEGs that are cut off, be it only by their end marker. ``"fault"``: they are bad
            samples, as for Pillow. ``"lenient"``: the row has what there is and grey for the rest; such rows are counted,
            and named in the batch's report under the class ``lenient``.
        orientation: ``"ignore"`` leaves pixels as they are stored, as Pillow and torchvision do. ``"apply"`` turns the
            picture as its EXIF data say before anything else, and masks that are ``like`` it with it.
        background: Red, green and blue, 0 to 255, that show through transparent pixels. Without it alpha is dropped, as
            Pillow's ``convert("RGB")`` does.
        default: Value of every channel of every pixel, 0 to 255, where a sample has no image.
    """

    form = "image"

    def __init__(
        self,
        sources: str | Iterable[str],
        *transforms: Transform,
        max_pixels: int = MAX_PIXELS,
        decode: str = "exact",
        truncated: str = "fault",
        orientation: str = "ignore",
        background: Sequence[int] | None = None,
        default: int = REQUIRED,
    ) -> None:
        self.sources = checked_sources(sources, "Image")
        _check_transforms(transforms, "Image")
        self.transforms = transforms
        self.max_pixels = checked_count(max_pixels, "max_pixels", "Image")
        self.decode = _choice(decode, ("exact", "scaled", "fast"), "decode")
        self.truncated = _choice(truncated, ("fault", "lenient"), "truncated")
        self.orientation = _choice(orientation, ("ignore", "apply"), "orientation")
        self.background = None if background is None else _colour(background)
        self.default = default

    def _default_bytes(self) -> bytes:
        return packed(self.default, "B", "default", "Image")

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        transforms = [transform.spec() for transform in self.transforms]
        spec: dict[str, Any] = {"transforms": transforms, "layout": layout.lower(), "max_pixels": self.max_pixels}
        choices = {"mode": self.decode, "truncated": self.truncated, "orientation": self.orientation}
        usual = ("exact", "fault", "ignore")
        decode: dict[str, Any] = {name: choice for name, choice in choices.items() if choice not in usual}
        if self.background is not None:
            decode["background"] = self.background
        if decode:
            spec["decode"] = decode
        return {"image": spec}

    def __repr__(self) -> str:
        return f"Image({', '.join(map(repr, (list(self.sources), *self.transforms)))})"


def _choice(value: object, choices: tuple[str, ...], name: str) -> str:
    if value not in choices:
        raise ValueError(f"Image: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)


def _colour(value: object) -> tuple[int, ...]:
    is_colour = isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == 3
    if not is_colour or not all(type(level) is int and 0 <= level <= 255 for level in value):  # type: ignore[attr-defined]
        raise ValueError(f"Image: background is (red, green, blue), each an int of 0 to 255, got {value!r}")
    return tuple(value)  # type: ignore[arg-type]


def _check_transforms(transforms: tuple[object, ...], owner: str) -> None:
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise TypeError(
                f"{owner}: {transform!r} is not a transform of feedline (RandomResizedCrop, Resize, CenterCrop, "
                "RandomHorizontalFlip); apply others to the batch, on the GPU"
            )
    if not any(isinstance(transform, Transform) and transform.fixes_size for transform in transforms):
        raise ValueError(
            f"{owner}: the transforms do not fix the output size, and a batch needs one: add RandomResizedCrop(224), "
            "CenterCrop(224) or Resize((224, 224))"
        )


def checked_count(value: object, name: str, owner: str, most: int = 2**63 - 1) -> int:
    """`value`, which must be an int of 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{owner}: {name} must be an int of at least 1 and at most {most}, got {value!r}")
    return value


def packed(value: object, code: str, name: str, owner: str) -> bytes:
    """`value` as one element, in this machine's byte order."""
    try:
        return struct.pack("=" + code, value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{owner}: {name}={value!r} is no element of the field: {error}") from None


class Mask(Field):
    """A mask of class numbers: ``dtype``, shape (N, height, width), in torch and in NumPy.

    Palette indices and grey values are kept as they are stored (those of 1, 2 and 4 bits too, unscaled); what has colours
    or is a JPEG is a bad sample. Resizing picks the nearest pixel, exactly as Pillow's ``Image.resize(size, NEAREST,
    box)``; nothing is ever mixed. The same ``transforms`` as an image's draw the same boxes and flips; ``like`` says so in
    one word, and checks that mask and image have one size as stored; where the image is turned by its orientation, so is the
    mask.

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        transforms: Operations in order, as those of an image; leave them out with ``like``.
        like: Name of the image field whose transforms and draws this mask shares.
        dtype: ``"uint8"``, or ``"int32"``, which masks of 16 bits need.
        fill: Class number of what CenterCrop adds around a mask that is smaller.
        max_pixels: Masks of more pixels are refused from their header.
        default: Class number of every pixel where a sample has no mask.
    """

    def __init__(
        self,
        sources: str | Iterable[str],
        *transforms: Transform,
        like: str | None = None,
        dtype: str = "uint8",
        fill: int = 0,
        max_pixels: int = MAX_PIXELS,
        default: int = REQUIRED,
    ) -> None:
        self.sources = checked_sources(sources, "Mask")
        if like is None:
            _check_transforms(transforms, "Mask")
        elif transforms:
            raise ValueError("Mask: like= takes the image's transforms: leave those of the mask out")
        if dtype not in ("uint8", "int32"):
            raise ValueError(f"Mask: dtype must be \"uint8\" or \"int32\", got {dtype!r}")
        packed(fill, "B" if dtype == "uint8" else "H", "fill", "Mask")
        self.transforms = transforms
        self.like = like
        self.dtype = dtype
        self.fill = fill
        self.max_pixels = checked_count(max_pixels, "max_pixels", "Mask")
        self.default = default

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        transforms = [transform.spec() for transform in self.transforms]
        spec = {"transforms": transforms, "like": self.like, "dtype": self.dtype, "fill": self.fill}
        return {"mask": {**spec, "max_pixels": self.max_pixels}}

    def _default_bytes(self) -> bytes:
        return packed(self.default, "B" if self.dtype == "uint8" else "i", "default", "Mask")

    def __repr__(self) -> str:
        rest = [f"like={self.like!r}"] if self.like else list(map(repr, self.transforms))
        return f"Mask({', '.join((repr(list(self.sources)), *rest))})"


class Int(Field):
    """An int64 a row, written in decimal, surrounding white space ignored; shape (N,).

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        default: The number of a row whose sample has none.
    """

    def __init__(self, sources: str | Iterable[str], *, default: int = REQUIRED) -> None:
        self.sources = checked_sources(sources, "Int")
        self.default = default

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        return "int"

    def _default_bytes(self) -> bytes:
        if not isinstance(self.default, int) or isinstance(self.default, bool):
            raise TypeError(f"Int: default must be an int, got {self.default!r}")
        return str(self.default).encode()

    def __repr__(self) -> str:
        return f"Int({list(self.sources)!r})"


class Float(Field):
    """A float64 a row, written in decimal, surrounding white space ignored; shape (N,).

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        default: The number of a row whose sample has none.
    """

    def __init__(self, sources: str | Iterable[str], *, default: float = REQUIRED) -> None:
        self.sources = checked_sources(sources, "Float")
        self.default = default

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        return "float"

    def _default_bytes(self) -> bytes:
        if not isinstance(self.default, int | float) or isinstance(self.default, bool):
            raise TypeError(f"Float: default must be a number, got {self.default!r}")
        return repr(float(self.default)).encode()

    def __repr__(self) -> str:
        return f"Float({list(self.sources)!r})"


def field_specs(fields: Mapping[str, Field], layout: str) -> list[dict[str, Any]]:
    """The fields as the sidecar is told them, in order."""
    if not isinstance(fields, Mapping) or not fields:
        raise TypeError(
            "fields must be a dict of name to field, as in {\"image\": feedline.Image([\"jpg\"], "
            f"feedline.RandomResizedCrop(224)), \"label\": feedline.Int(\"cls\")}}, got {fields!r}"
        )
    for name, field in fields.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"fields: a name is a string, got {name!r}")
        if not isinstance(field, Field):
            raise TypeError(
                f"fields[{name!r}] must be feedline.Image, Mask, Int, Float, Text, Json, Bytes or Array, got {field!r}"
            )
    return [_field_spec(name, field, layout) for name, field in fields.items()]


def _field_spec(name: str, field: Field, layout: str) -> dict[str, Any]:
    spec = {"name": name, "sources": list(field.sources), "kind": field.kind(layout)}
    default = field.default_bytes()
    return spec if default is None else {**spec, "default": list(default)}


#: Endings under which images are found where the user does not say.
IMAGE_SOURCES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm", "pgm")


def default_fields(is_random: bool) -> dict[str, Field]:
    """What a classifier on ImageNet takes, for training where the order is random, else for validation."""
    transforms = (RandomResizedCrop(224), RandomHorizontalFlip()) if is_random else (Resize(256), CenterCrop(224))
    return {"image": Image(IMAGE_SOURCES, *transforms), "label": Int("cls")}
