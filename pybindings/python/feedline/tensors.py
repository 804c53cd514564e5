"""From a field's bytes to a tensor: torch's where torch is installed, NumPy's otherwise. Nothing is copied."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

#: Makes one field's tensor from its buffer.
Maker = Callable[[Any], Any]


def framework() -> str:
    """``torch`` or ``numpy``: what ``FEEDLINE_TENSORS`` says, else torch where it can be imported."""
    wanted = os.environ.get("FEEDLINE_TENSORS", "")
    if wanted in ("torch", "numpy"):
        return wanted
    if wanted:
        raise ValueError(f"FEEDLINE_TENSORS must be torch or numpy, or unset to have it found, got {wanted!r}")
    return "numpy" if importlib.util.find_spec("torch") is None else "torch"


def makers(layout: list[dict[str, Any]], is_channels_last: list[bool], rows: int, kind: str) -> list[Maker]:
    """One maker a field of `layout`, for batches of `rows` rows, of framework `kind`.

    `is_channels_last` marks images of shape (height, width, channel) in memory, which torch sees as (3, H, W).
    """
    make = _torch_maker if kind == "torch" else _numpy_maker
    return [make(field, last, rows) for field, last in zip(layout, is_channels_last, strict=True)]


def _numpy_maker(field: dict[str, Any], is_channels_last: bool, rows: int) -> Maker:
    import numpy

    dtype = numpy.dtype(field["dtype"])
    shape = (rows, *field["shape"])
    ndarray = numpy.ndarray
    return lambda buffer: ndarray(shape, dtype, buffer)


def _torch_maker(field: dict[str, Any], is_channels_last: bool, rows: int) -> Maker:
    import torch

    dtype = getattr(torch, field["dtype"])
    shape = (rows, *field["shape"])
    frombuffer = torch.frombuffer
    if len(shape) == 1:
        return lambda buffer: frombuffer(buffer, dtype=dtype)
    strides = [1]
    for side in reversed(shape[1:]):
        strides.insert(0, strides[0] * side)
    if is_channels_last:
        rows, height, width, channels = shape
        shape = (rows, channels, height, width)
        strides = [strides[0], strides[3], strides[1], strides[2]]
    return lambda buffer: frombuffer(buffer, dtype=dtype).as_strided(shape, strides)
