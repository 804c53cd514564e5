"""Fields of any length or shape: texts, bytes, JSON and arrays. Descriptions, as all of `fields`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from .fields import REQUIRED, Field, checked_count, checked_sources, packed

#: Most bytes of one value: the sidecar checks what a whole batch might take.
BYTES_MAX = 2**31 - 1

#: Element types of arrays, as `struct` has them.
_DTYPES = {
    "bool": "?", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int8": "b", "int16": "h", "int32": "i",
    "int64": "q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip


class Text(Field):
    """UTF-8 text of any length: a list of N str, exactly as stored, in memory of its own.

    A sample whose bytes are not UTF-8 is bad, of class bad-value; an empty text is legal.

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        max_bytes: Longer texts are bad samples, of class too-large.
        default: The text of a row whose sample has none.
    """

    form = "texts"

    def __init__(self, sources: str | Iterable[str], *, max_bytes: int = 64 << 10, default: str = REQUIRED) -> None:
        self.sources = checked_sources(sources, "Text")
        self.max_bytes = checked_count(max_bytes, "max_bytes", "Text", BYTES_MAX)
        self.default = default

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        return {"text": {"max_bytes": self.max_bytes}}

    def _default_bytes(self) -> bytes:
        if not isinstance(self.default, str):
            raise TypeError(f"Text: default must be a str, got {self.default!r}")
        return self.default.encode()

    def __repr__(self) -> str:
        return f"Text({list(self.sources)!r})"


class Bytes(Field):
    """Bytes of any length, as they are, in memory of their own.

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        as_: ``"list"``: a list of N bytes objects. ``"ragged"``: a pair (values, offsets): uint8, shape (total,), all rows
            one after the other, and int64, shape (N + 1,): row i is ``values[offsets[i]:offsets[i + 1]]``, as
            ``torch.nested.nested_tensor_from_jagged`` and Arrow have it. Both are copies: workers finish in any order, so
            in the slot the rows lie scattered.
        max_bytes: Longer ones are bad samples, of class too-large.
        default: The bytes of a row whose sample has none.
    """

    def __init__(
        self,
        sources: str | Iterable[str],
        *,
        as_: Literal["list", "ragged"] = "list",
        max_bytes: int = 1 << 20,
        default: bytes = REQUIRED,
    ) -> None:
        self.sources = checked_sources(sources, "Bytes")
        if as_ not in ("list", "ragged"):
            raise ValueError(f"Bytes: as_ must be \"list\" or \"ragged\", got {as_!r}")
        self.as_ = as_
        self.max_bytes = checked_count(max_bytes, "max_bytes", "Bytes", BYTES_MAX)
        self.default = default

    @property
    def form(self) -> str:  # type: ignore[override]
        """What becomes of the field."""
        return "ragged" if self.as_ == "ragged" else "chunks"

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        return {"bytes": {"max_bytes": self.max_bytes}}

    def _default_bytes(self) -> bytes:
        if not isinstance(self.default, bytes):
            raise TypeError(f"Bytes: default must be bytes, got {self.default!r}")
        return self.default

    def __repr__(self) -> str:
        return f"Bytes({list(self.sources)!r}, as_={self.as_!r})"


class Json(Field):
    """JSON of any length: N objects, indexed and iterated like a list, each parsed by `json.loads` when it is first looked
    at.

    A sample whose bytes `json.loads` would not read is bad, of class bad-value, whether anybody looks or not.

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        parse: False delivers a list of N bytes objects, unchecked.
        max_bytes: Longer ones are bad samples, of class too-large.
        default: The object of a row whose sample has none; bytes where ``parse`` is False.
    """

    def __init__(
        self, sources: str | Iterable[str], *, parse: bool = True, max_bytes: int = 64 << 10, default: Any = REQUIRED
    ) -> None:
        self.sources = checked_sources(sources, "Json")
        self.parse = bool(parse)
        self.max_bytes = checked_count(max_bytes, "max_bytes", "Json", BYTES_MAX)
        self.default = default

    @property
    def form(self) -> str:  # type: ignore[override]
        """What becomes of the field."""
        return "json" if self.parse else "chunks"

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        return {"json" if self.parse else "bytes": {"max_bytes": self.max_bytes}}

    def _default_bytes(self) -> bytes:
        if self.parse:
            return json.dumps(self.default).encode()
        if not isinstance(self.default, bytes):
            raise TypeError(f"Json: default must be bytes where parse=False, got {self.default!r}")
        return self.default

    def __repr__(self) -> str:
        return f"Json({list(self.sources)!r})"


class Array(Field):
    """A NumPy array: a ``.npy``, or one member of a ``.npz``.

    Versions 1 to 3 of the format are read, both byte orders, C and Fortran order, numbers and bool of up to 64 bits.
    Arrays of objects are refused by name: they are pickles, and never loaded. So are complex numbers, texts and dates.

    Args:
        sources: Names of shard members that hold it, without a leading dot; the first present wins.
        shape: Of each array: the batch's is ``dtype``, shape (N, *shape). None: each has its own, and the field is a list
            of N tensors, views of the slot, which goes back when the last of them is dead.
        dtype: Element type; arrays of another are bad samples, of class bad-value.
        member: Name of the array in a ``.npz``; None where the bytes are a ``.npy``.
        max_bytes: Where ``shape`` is None, arrays with more bytes of elements are bad samples, of class too-large.
        default: Every element of a row whose sample has none. Where ``shape`` is None, such a row is an array of shape
            (0,), and this may be any element.
    """

    def __init__(
        self,
        sources: str | Iterable[str],
        *,
        shape: Sequence[int] | None,
        dtype: str,
        member: str | None = None,
        max_bytes: int = 1 << 20,
        default: float = REQUIRED,
    ) -> None:
        self.sources = checked_sources(sources, "Array")
        name = array_dtype(dtype, "Array")
        shape = None if shape is None else array_shape(shape, "Array")
        if member is not None and (not isinstance(member, str) or not member):
            raise TypeError(f"Array: member is the name of an array in a .npz, or None, got {member!r}")
        self.shape = shape
        self.dtype = name
        self.member = member
        self.max_bytes = checked_count(max_bytes, "max_bytes", "Array", BYTES_MAX)
        self.default = default

    @property
    def form(self) -> str:  # type: ignore[override]
        """What becomes of the field."""
        return "arrays" if self.shape is None else "tensor"

    def kind(self, layout: str) -> Any:
        """What the sidecar is told to make of the bytes, as JSON."""
        shape = None if self.shape is None else list(self.shape)
        return {"array": {"member": self.member, "dtype": self.dtype, "shape": shape, "max_bytes": self.max_bytes}}

    def _default_bytes(self) -> bytes:
        return packed(self.default, _DTYPES[self.dtype], "default", "Array")

    def __repr__(self) -> str:
        member = f", member={self.member!r}" if self.member else ""
        return f"Array({list(self.sources)!r}{member}, shape={self.shape!r}, dtype={self.dtype!r})"


def array_dtype(dtype: object, owner: str) -> str:
    """The name of an element type, given by name or as NumPy's or torch's."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"{owner}: dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    return str(name)


def array_shape(shape: Sequence[int], owner: str) -> tuple[int, ...]:
    """`shape`, which must be that of an array."""
    sides = tuple(shape)
    if len(sides) > 8 or not all(isinstance(side, int) and 0 <= side < 2**32 for side in sides):
        raise ValueError(f"{owner}: shape must be at most 8 sides of 0 or more, or None, got {shape!r}")
    return sides
