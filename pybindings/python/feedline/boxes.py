"""Fields of boxes and of what belongs to them, and boxes in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from .fields import REQUIRED, Field, checked_count, checked_sources
from .values import BYTES_MAX, array_dtype, array_shape

#: Most boxes of a sample that a field may ask for.
_BOXES_MAX = 1 << 20


class Boxes(Field):
    """Boxes of an image, any number a row: a `BoxRows` with all boxes of the batch, their labels, and where rows begin.

    The transforms of the image reach them with the same parameters: crops, resizes, flips, borders, rotations and
    projections (the smallest upright box around the four moved corners), and the orientation where the image applies it.
    After each step they are clipped to the image, as by torchvision's kernels; what a crop has cut away does not come back.
    Boxes without an area, as stored or as left, are dropped, and those that ``min_size``, ``min_area`` and
    ``min_visibility`` say; labels and extra numbers are dropped along. Rows without boxes are legal, stored or left.

    A value is told by its first bytes. JSON: a list of objects with a member for each name below, as COCO's annotations
    of one image; a list of rows of numbers; or an object with a list for each name. ``.npy``: an array (N, columns). ``.npz``:
    an array for each name. A row of numbers has the box, then the label unless ``labels`` is None, the ``extra`` numbers, and
    that of ``leave_out``, in this order.

    Bad samples, of class bad-value: a box with numbers that are not finite, a negative width or height, or outside of the
    image altogether (one that touches it has no area there, and is dropped); too few or too many numbers; a label that is no
    integer of at most 53 bits; columns of several lengths. Which box, and of how many, is in the words of the report.

    Args:
        sources: Names of shard members that hold them, without a leading dot; the first present wins.
        of: Name of the image field that they belong to. A second view of the picture takes a second field of boxes.
        format: What the four numbers are: ``"xyxy"`` left, top, right, bottom; ``"xywh"`` left, top, width, height, as
            COCO has them; ``"cxcywh"`` middle, width, height. In pixels of the picture as it is stored; edges count, so a
            box over all of it is 0, 0, width, height. A batch has xyxy.
        normalized: The numbers are shares of the picture's width and height.
        within: In JSON, the member of the outermost object that holds the boxes, as ``"annotations"``.
        boxes: Name of a box in its object, or of the column.
        labels: Name of its label likewise; None where there are none, and every label is 1.
        extra: Names of further numbers, which are kept as float64; true and false are 1 and 0.
        leave_out: Name of a number that, where it is not 0, leaves its box out, as ``"iscrowd"``.
        outside: ``"drop"`` drops a box that lies outside of the picture altogether, instead of faulting the sample.
        min_size: Boxes with a shorter side are dropped, in pixels of the output.
        min_area: Boxes of a smaller area are dropped, in pixels of the output.
        min_visibility: Boxes of which a smaller share is left are dropped. It is the product, over all clippings, of the
            area after and before, of the hull where a rotation made one; 1 is the box as far as it lies in the picture.
        max_boxes: Samples with more are bad, of class too-large.
        default: ``()``: a sample that has none of the sources has no boxes. A row whose picture is a default has none either.
    """

    def __init__(
        self,
        sources: str | Iterable[str],
        *,
        of: str,
        format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalized: bool = False,
        within: str | None = None,
        boxes: str = "bbox",
        labels: str | None = "category_id",
        extra: Sequence[str] = (),
        leave_out: str | None = None,
        outside: Literal["fault", "drop"] = "fault",
        min_size: float = 1.0,
        min_area: float = 1.0,
        min_visibility: float = 0.0,
        max_boxes: int = 4096,
        default: Sequence[Any] = REQUIRED,
    ) -> None:
        self.sources = checked_sources(sources, "Boxes")
        self.of = _name(of, "of")
        if format not in ("xyxy", "xywh", "cxcywh"):
            raise ValueError(f"Boxes: format must be \"xyxy\", \"xywh\" or \"cxcywh\", got {format!r}")
        if outside not in ("fault", "drop"):
            raise ValueError(f"Boxes: outside must be \"fault\" or \"drop\", got {outside!r}")
        self.format = format
        self.normalized = bool(normalized)
        self.within = None if within is None else _name(within, "within")
        self.boxes = _name(boxes, "boxes")
        self.labels = None if labels is None else _name(labels, "labels")
        if isinstance(extra, str):
            raise TypeError(f"Boxes: extra is a sequence of names, got {extra!r}: write ({extra!r},)")
        self.extra = tuple(_name(name, "extra") for name in extra)
        self.leave_out = None if leave_out is None else _name(leave_out, "leave_out")
        names = [name for name in (self.boxes, self.labels, *self.extra) if name is not None]
        if len(set(names)) < len(names):
            raise ValueError(f"Boxes: boxes, labels and extra are different names, got {names}")
        self.outside = outside
        self.min_size = _least(min_size, "min_size")
        self.min_area = _least(min_area, "min_area")
        self.min_visibility = _least(min_visibility, "min_visibility")
        self.max_boxes = checked_count(max_boxes, "max_boxes", "Boxes", _BOXES_MAX)
        self.default = default

    @property
    def form(self) -> str:  # type: ignore[override]
        """What becomes of the field."""
        return f"boxes:{len(self.extra)}"

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        names = ("of", "format", "normalized", "within", "boxes", "labels", "extra", "leave_out", "outside", "min_size",
                 "min_area", "min_visibility", "max_boxes")  # fmt: skip
        return {"boxes": {name: getattr(self, name) for name in names}}

    def _default_bytes(self) -> bytes:
        if len(self.default) != 0:
            raise ValueError(f"Boxes: default can only be (), no boxes, got {self.default!r}")
        return b"[]"

    def __repr__(self) -> str:
        return f"Boxes({list(self.sources)!r}, of={self.of!r}, format={self.format!r})"


class BoxValues(Field):
    """Entries of an array with one for each box, as a member of a shard of its own has them; those of boxes that are dropped
    are dropped along. A list of N tensors, each ``dtype`` of shape (boxes of the row, *shape), views of the slot as those
    of `Array`.

    Args:
        sources: Names of shard members that hold it, a ``.npy``, without a leading dot; the first present wins.
        of: Name of the field of `Boxes` that it belongs to; arrays of another length than it has boxes stored are bad
            samples, of class bad-value.
        dtype: Element type; arrays of another are bad samples.
        shape: Of one entry.
        max_bytes: Larger arrays are bad samples, of class too-large.
        default: ``()``: a sample that has none of the sources has no entries, whatever boxes it has.
    """

    form = "arrays"

    def __init__(
        self,
        sources: str | Iterable[str],
        *,
        of: str,
        dtype: str = "int64",
        shape: Sequence[int] = (),
        max_bytes: int = 1 << 20,
        default: Sequence[Any] = REQUIRED,
    ) -> None:
        self.sources = checked_sources(sources, "BoxValues")
        self.of = _name(of, "of")
        self.dtype = array_dtype(dtype, "BoxValues")
        self.shape = array_shape(shape, "BoxValues")
        self.max_bytes = checked_count(max_bytes, "max_bytes", "BoxValues", BYTES_MAX)
        self.default = default

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        return {"box_values": {"of": self.of, "dtype": self.dtype, "shape": list(self.shape), "max_bytes": self.max_bytes}}

    def _default_bytes(self) -> bytes:
        if len(self.default) != 0:
            raise ValueError(f"BoxValues: default can only be (), no entries, got {self.default!r}")
        return b""

    def __repr__(self) -> str:
        return f"BoxValues({list(self.sources)!r}, of={self.of!r}, dtype={self.dtype!r}, shape={self.shape!r})"


class BoxRows(NamedTuple):
    """The boxes of a batch of N rows, in memory of their own.

    Attributes:
        boxes: float32, shape (total, 4): left, top, right, bottom in pixels of the output, all rows one after the other.
        offsets: int64, shape (N + 1,): the boxes of row i are ``boxes[offsets[i]:offsets[i + 1]]``.
        labels: int64, shape (total,).
        extra: float64, shape (total, names in ``extra``).
    """

    boxes: Any
    offsets: Any
    labels: Any
    extra: Any

    def targets(self, *names: str) -> list[dict[str, Any]]:
        """One dict a row, ``{"boxes": …, "labels": …}``, as torchvision's detection models take their targets; views.

        Args:
            names: Names for the columns of ``extra``, which become entries of the dicts, float64.
        """
        if names and len(names) != self.extra.shape[1]:
            raise ValueError(f"{len(names)} names for {self.extra.shape[1]} extra numbers of a box: {names}")
        ends = self.offsets.tolist()
        rows = [slice(first, last) for first, last in zip(ends, ends[1:], strict=False)]
        return [
            {
                "boxes": self.boxes[row],
                "labels": self.labels[row],
                **{name: self.extra[row, column] for column, name in enumerate(names)},
            }
            for row in rows
        ]


def _name(value: object, argument: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"Boxes: {argument} is a name, got {value!r}")
    return value


def _least(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ValueError(f"Boxes: {name} must be a number of at least 0, got {value!r}")
    return float(value)
