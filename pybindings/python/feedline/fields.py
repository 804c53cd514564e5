"""What a batch is made of: its fields.

`values` has the fields that are neither pictures nor single numbers, `boxes` those of boxes, `transforms` what happens to
images, masks and boxes. Everything here is a description: the sidecar does the work, and `kind` is the JSON that it is told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .transforms import (
    CenterCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    Transform,
)

#: Images of more pixels are refused from their header, before memory is taken: Pillow's limit for an error.
MAX_PIXELS = 2 * 89_478_485


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
    """An image: three channels, RGB; uint8, or the floats that a `ToDtype` among its transforms makes of it.

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
            resized stays at least twice as large as what becomes of it, in both directions; smaller ones stay exact. So
            do all whose first step is no bilinear resize with antialias: another interpolation, or an operation on the
            whole image before any resize.
            Over 14 photos of 9 to 20 megapixels under ``RandomResizedCrop(224)`` values so differ from exact ones by 0.2
            in the mean, by at most 4 for 99.9 % of them, and by 16 at most (``tests/python/test_decode.py``).
            ``"fast"`` takes libjpeg's fast transform and repeats colours instead of interpolating them; progressive
            files that are cut off stay exact.
        truncated: What becomes of JPEGs that are cut off, be it only by their end marker. ``"fault"``: they are bad
            samples, as for Pillow. ``"lenient"``: the row has what there is and grey for the rest; such rows are counted,
            and named in the batch's report under the class ``lenient``.
        orientation: ``"ignore"`` leaves pixels as they are stored, as Pillow and torchvision do. ``"apply"`` turns the
            picture as its EXIF data say before anything else, and its masks and boxes with it.
        background: Red, green and blue, 0 to 255, that show through transparent pixels. Without it alpha is dropped, as
            Pillow's ``convert("RGB")`` does.
        default: Value of every channel of every pixel, 0 to 255 (a number, for floats), where a sample has no image.
        view: Number of this view of a sample, 0 to 65535. Images whose transforms are alike draw the same parameters;
            two views of one picture, as contrastive learning wants them, are two images with different numbers.
        like: Name of the image field whose transforms and draws this image shares, for pairs of images: it has no transforms
            of its own, and the pairs' sizes as stored are compared.
        scale: With ``like``, how many times larger this image is in each direction. The transforms are drawn on the pixels of
            the other, and every place and length is multiplied: RandomCrop(48) of one is a crop of 192 of an image of scale
            4, at 4 times its place. Colours change alike; a blur and a change of sharpness work on the pixels they meet. A
            pair whose sizes are not in that ratio is a bad sample.
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
        default: float = REQUIRED,
        view: int = 0,
        like: str | None = None,
        scale: int = 1,
    ) -> None:
        self.sources = checked_sources(sources, "Image")
        if like is None:
            _check_transforms(transforms, "Image")
            if scale != 1:
                raise ValueError("Image: scale= belongs to like=, the image that this one is larger than: add that")
        elif transforms or view:
            raise ValueError("Image: like= takes the other image's transforms and view: leave those of this one out")
        if not isinstance(view, int) or isinstance(view, bool) or not 0 <= view < 2**16:
            raise ValueError(f"Image: view is a number, 0 to {2**16 - 1}, got {view!r}")
        self.transforms = transforms
        self.max_pixels = checked_count(max_pixels, "max_pixels", "Image")
        self.decode = _choice(decode, ("exact", "scaled", "fast"), "decode")
        self.truncated = _choice(truncated, ("fault", "lenient"), "truncated")
        self.orientation = _choice(orientation, ("ignore", "apply"), "orientation")
        self.background = None if background is None else _colour(background)
        self.default = default
        self.view = view
        self.like = like
        self.scale = checked_count(scale, "scale", "Image", 2**16)

    @property
    def dtype(self) -> str:
        """Name of the type of its values."""
        floats = [transform.dtype_name for transform in self.transforms if isinstance(transform, ToDtype)]
        return floats[-1] if floats else "uint8"

    def _default_bytes(self) -> bytes:
        if self.dtype == "bfloat16":
            return _bfloat16(self.default)
        return packed(self.default, {"uint8": "B", "float16": "e", "float32": "f"}[self.dtype], "default", "Image")

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
        if self.view:
            spec["view"] = self.view
        if self.like is not None:
            spec["like"] = {"image": self.like, "scale": self.scale}
        return {"image": spec}

    def __repr__(self) -> str:
        like = [] if self.like is None else [f"like={self.like!r}", f"scale={self.scale}"]
        return f"Image({', '.join([repr(list(self.sources)), *map(repr, self.transforms), *like])})"


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
                f"{owner}: {transform!r} is not a transform of feedline (those of feedline.transforms); apply others to "
                "the batch, on the GPU"
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


def _bfloat16(value: object) -> bytes:
    """`value` as one element, rounded to the nearest, ties to even."""
    bits: int = struct.unpack("=I", packed(value, "f", "default", "Image"))[0]
    return struct.pack("=H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


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
                f"fields[{name!r}] must be feedline.Image, Mask, Boxes, BoxValues, Int, Float, Text, Json, Bytes or Array, "
                f"got {field!r}"
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
