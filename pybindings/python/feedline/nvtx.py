"""NVTX ranges: what the loader does in the trainer's process, on the time line of a profiler.

A profiler (Nsight Systems, Nsight Compute) names a library in ``NVTX_INJECTION64_PATH``. NVTX 3 is a protocol between that
library and whoever has ranges to tell: the library asks for tables, and puts its own functions where ours are empty. So
nothing needs to be installed, and neither CUDA nor torch takes part. The sidecar is another process and tells no ranges.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

logger = logging.getLogger("feedline")

#: Functions of each module of NVTX 3, the empty one of number 0 included: core, CUDA, OpenCL, CUDA runtime, domains, sync.
_MODULE_SIZES = {1: 16, 2: 9, 3: 15, 4: 7, 5: 16, 6: 7}

_CORE, _RANGE_PUSH, _RANGE_POP = 1, 9, 11
_TABLE_CALLBACKS, _TABLE_VERSION = 1, 3

_PointerTable = ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))
_GetModule = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(_PointerTable), ctypes.POINTER(ctypes.c_uint))
_GetTable = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
_SetVersion = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
# With the interpreter's lock held: a range is told in less time than giving the lock away takes.
_Push = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_Pop = ctypes.PYFUNCTYPE(ctypes.c_int)


class _Callbacks(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("get_module", _GetModule))


class _Version(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("version", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("set_version", _SetVersion)
    )  # fmt: skip


def wanted(asked: bool | None) -> bool:
    """Whether ranges are asked for: by the argument, else by ``FEEDLINE_NVTX``."""
    if asked is not None:
        return bool(asked)
    setting = os.environ.get("FEEDLINE_NVTX", "0")
    if setting not in ("", "0", "1"):
        raise ValueError(f"FEEDLINE_NVTX must be 0 or 1, got {setting!r}")
    return setting == "1"


class Range:
    """A range, to be entered any number of times, by several threads too."""

    def __init__(self, name: str, push: Callable[[bytes], int], pop: Callable[[], int]) -> None:
        self._name, self._push, self._pop = f"feedline.{name}".encode(), push, pop

    def __enter__(self) -> None:
        self._push(self._name)

    def __exit__(self, *_: object) -> None:
        self._pop()


def ranges(is_wanted: bool, *names: str) -> list[AbstractContextManager[None]]:
    """A range ``feedline.<name>`` for each name; where none are wanted, or no profiler listens, what does nothing."""
    functions = _functions() if is_wanted else None
    return [nullcontext() if functions is None else Range(name, *functions) for name in names]


@functools.cache
def _functions() -> tuple[Callable[[bytes], int], Callable[[], int]] | None:
    """The profiler's functions that begin and end a range, None where there is no profiler."""
    path = os.environ.get("NVTX_INJECTION64_PATH")
    if not path:
        logger.info("NVTX ranges are asked for, and no profiler listens: NVTX_INJECTION64_PATH is not set")
        return None
    try:
        initialize = ctypes.CDLL(path).InitializeInjectionNvtx2
    except (OSError, AttributeError) as error:
        logger.warning("no NVTX ranges: NVTX_INJECTION64_PATH names no library of a profiler: %s", error)
        return None
    tables = _Tables()
    initialize.argtypes, initialize.restype = [_GetTable], ctypes.c_int
    if not initialize(tables.get_table):
        logger.warning("no NVTX ranges: %s refused to start", path)
        return None
    push, pop = tables.function(_CORE, _RANGE_PUSH), tables.function(_CORE, _RANGE_POP)
    if push is None or pop is None:
        logger.warning("no NVTX ranges: %s takes none", path)
        return None
    # The profiler may write to them for as long as the process lives.
    _kept.append(tables)
    return _Push(push), _Pop(pop)


_kept: list[Any] = []


class _Tables:
    """What NVTX shows to a profiler: for each module a table of places for its functions, from number 1 on."""

    def __init__(self) -> None:
        self._places = {module: (ctypes.c_void_p * size)() for module, size in _MODULE_SIZES.items()}
        self._tables = {}
        for module, size in _MODULE_SIZES.items():
            # It ends with a null pointer too.
            table = (ctypes.POINTER(ctypes.c_void_p) * (size + 1))()
            for number in range(1, size):
                address = ctypes.addressof(self._places[module]) + number * ctypes.sizeof(ctypes.c_void_p)
                table[number] = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
            self._tables[module] = table
        self._callbacks = _Callbacks(ctypes.sizeof(_Callbacks), _GetModule(self._get_module))
        self._version = _Version(ctypes.sizeof(_Version), 3, 0, _SetVersion(lambda version: None))
        exported = {_TABLE_CALLBACKS: ctypes.addressof(self._callbacks), _TABLE_VERSION: ctypes.addressof(self._version)}
        #: What a profiler's initialiser is called with.
        self.get_table = _GetTable(exported.get)

    def function(self, module: int, number: int) -> int | None:
        """The address that the profiler has put in a place."""
        return self._places[module][number]

    def _get_module(self, module: int, table: Any, size: Any) -> int:
        if module not in self._tables:
            return 0
        if size:
            size[0] = _MODULE_SIZES[module]
        if table:
            table[0] = ctypes.cast(self._tables[module], _PointerTable)
        return 1
