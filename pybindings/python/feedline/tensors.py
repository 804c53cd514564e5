"""From what a batch holds of a field to what a trainer gets: torch's tensors where torch is installed, NumPy's arrays
otherwise, without a copy; and lists of what has no tensor.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, overload

from ._native import View
from .boxes import BoxRows

#: Makes of one field's buffer what the batch shows.
Maker = Callable[[Any], Any]

#: Forms of rows of one size: a tensor, an image's tensor in ``channels_last``.
FIXED_FORMS = ("tensor", "image")

#: What a field can become: those, str, bytes, parsed JSON, a pair of values and offsets, tensors of any shape, boxes.
FORMS = ("tensor", "image", "texts", "chunks", "json", "ragged", "arrays", "boxes")

#: Types that NumPy does not have, and what holds their bits there.
_NUMPY_NAMES = {"bfloat16": "uint16"}


def framework() -> str:
    """``torch`` or ``numpy``: what ``FEEDLINE_TENSORS`` says, else torch where it can be imported."""
    wanted = os.environ.get("FEEDLINE_TENSORS", "")
    if wanted in ("torch", "numpy"):
        return wanted
    if wanted:
        raise ValueError(f"FEEDLINE_TENSORS must be torch or numpy, or unset to have it found, got {wanted!r}")
    return "numpy" if importlib.util.find_spec("torch") is None else "torch"


def makers(layout: list[dict[str, Any]], forms: list[str], rows: int, kind: str) -> list[Maker]:
    """One maker a field of `layout`, for batches of `rows` rows, of framework `kind`.

    `forms` says what each becomes, one of `FORMS`; ``boxes:2`` are boxes with two extra numbers each. An ``image`` has shape
    (height, width, channel) in memory, which torch sees as (3, H, W).
    """
    return [_maker(field, form, rows, kind) for field, form in zip(layout, forms, strict=True)]


def _maker(field: dict[str, Any], form: str, rows: int, kind: str) -> Maker:
    if form == "texts":
        return lambda values: values.texts()
    if form == "chunks":
        return lambda values: values.chunks()
    if form == "json":
        return lambda values: JsonRows(values.chunks())
    if form == "ragged":
        chars, offsets = _view("uint8", kind), _view("int64", kind)

        def ragged(values: Any) -> tuple[Any, Any]:
            first, second = values.ragged()
            return chars(first, (len(first),)), offsets(second, (rows + 1,))

        return ragged
    if form.startswith("boxes"):
        return _boxes_maker(int(form.partition(":")[2] or 0), rows, kind)
    if form == "arrays":
        view = _view(field["dtype"], kind)
        return lambda arrays: [view(elements, shape) for shape, elements in arrays]
    if kind == "numpy":
        return _numpy_maker(field, rows)
    return _torch_maker(field, form == "image", rows)


def _boxes_maker(extra: int, rows: int, kind: str) -> Maker:
    sides, numbers, floats = (_view(dtype, kind) for dtype in ("float32", "int64", "float64"))

    def made(values: Any) -> BoxRows:
        boxes, offsets, labels, others = values.boxes(extra)
        total = len(labels) // 8
        return BoxRows(
            sides(boxes, (total, 4)), numbers(offsets, (rows + 1,)), numbers(labels, (total,)), floats(others, (total, extra))
        )

    return made


def _view(dtype: str, kind: str) -> Callable[[Any, Any], Any]:
    """Makes a tensor of a buffer and a shape."""
    if kind == "numpy":
        import numpy

        numpy_dtype, ndarray = numpy.dtype(_NUMPY_NAMES.get(dtype, dtype)), numpy.ndarray
        return lambda buffer, shape: ndarray(tuple(shape), numpy_dtype, buffer)
    import torch

    torch_dtype, frombuffer = getattr(torch, dtype), torch.frombuffer

    def view(buffer: Any, shape: Any) -> Any:
        if not len(buffer):
            # torch makes no tensor of an empty buffer.
            return torch.empty(tuple(shape), dtype=torch_dtype)
        return frombuffer(buffer, dtype=torch_dtype).view(tuple(shape))

    return view


def _numpy_maker(field: dict[str, Any], rows: int) -> Maker:
    import numpy

    dtype = numpy.dtype(_NUMPY_NAMES.get(field["dtype"], field["dtype"]))
    shape = (rows, *field["shape"])
    ndarray = numpy.ndarray
    return lambda buffer: ndarray(shape, dtype, buffer)


def _torch_maker(field: dict[str, Any], is_channels_last: bool, rows: int) -> Maker:
    import torch

    dtype = getattr(torch, field["dtype"])
    shape, strides = placed(field, is_channels_last, rows)
    if 0 in shape:
        # torch makes no tensor of an empty buffer.
        return lambda buffer: torch.empty(shape, dtype=dtype)
    # One call each for a capsule and its tensor, where frombuffer and as_strided take twice as long.
    capsule, from_dlpack = View(field["dtype"], shape, strides).capsule, torch.utils.dlpack.from_dlpack
    return lambda buffer: from_dlpack(capsule(buffer))


def placed(field: dict[str, Any], is_channels_last: bool, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides, in elements, of torch's tensor of `rows` rows of `field`."""
    shape = (rows, *field["shape"])
    strides = [1]
    for side in reversed(shape[1:]):
        strides.insert(0, strides[0] * side)
    if is_channels_last:
        rows, height, width, channels = shape
        return (rows, channels, height, width), (strides[0], strides[3], strides[1], strides[2])
    return shape, tuple(strides)


class JsonRows:
    """The parsed objects of a batch's rows; each is parsed when it is first looked at, and kept.

    Equal to a list of the same objects, and pickled as its bytes. Not a `Sequence` in the sense of `collections.abc`: what
    moves batches to devices would look into those, parse every row and build the like of it anew.
    """

    def __init__(self, chunks: list[bytes]) -> None:
        #: The JSON of each row, as stored.
        self.chunks = chunks
        self._parsed: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.chunks)

    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> list[Any]: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        index = range(len(self.chunks))[row]
        if index not in self._parsed:
            self._parsed[index] = json.loads(self.chunks[index])
        return self._parsed[index]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonRows | list) and len(self) == len(other) and all(map(_equal, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonRows, (self.chunks,)

    def __repr__(self) -> str:
        return f"JsonRows({len(self)} rows)"


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)
