"""A GPU to pretend with, for scripts: torch's calls that a loader with `device` makes, over host memory and `cuda_stub.c`.

Streams have clocks of their own, which the script sets: `streams[7].free_at` is when the user's stream has done its kernels,
`clock.now` what time it is. A copy takes `COPY_S` of the copy stream. So every figure is exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

COPY_S = 0.25

clock = SimpleNamespace(now=0.0)


class Stream:
    """A line of work: what is put on it is done from when it is free."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number
        self.free_at = 0.0

    def wait_event(self, event: Event) -> None:
        self.free_at = max(self.free_at, event.at)

    def work(self, seconds: float) -> None:
        self.free_at = max(self.free_at, clock.now) + seconds


class Event:
    """A point of a stream's line."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timed = enable_timing
        self.at = float("nan")

    def record(self, stream: Stream) -> None:
        self.at = max(stream.free_at, clock.now)

    def query(self) -> bool:
        return self.at <= clock.now

    def elapsed_time(self, other: Event) -> float:
        assert self._is_timed and other._is_timed and self.query() and other.query(), "CUDA refuses"
        return 1000 * (other.at - self.at)


#: The user's stream has number 7, the loader's own number 8.
streams = {number: Stream(number) for number in (7, 8)}


@contextlib.contextmanager
def _entered(stream: Stream) -> Iterator[None]:
    yield
    assert stream is streams[8]


def install() -> None:
    """Has torch see one GPU, whose memory is the host's."""
    empty_strided = torch.empty_strided

    def allocate(shape: Any, strides: Any, *, dtype: Any, device: Any) -> Any:
        assert str(device) == "cuda:0"
        if len(shape) == 4:
            # Once a batch, between the events around its copy.
            streams[8].work(COPY_S)
        return empty_strided(shape, strides, dtype=dtype)

    cuda: Any = torch.cuda
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.is_current_stream_capturing = lambda: False
    cuda.current_device = lambda: 0
    cuda.current_stream = lambda device=None: streams[7]
    cuda.Stream = lambda device: streams[8]
    cuda.stream = _entered
    cuda.Event = Event
    cuda.get_device_properties = lambda number: SimpleNamespace()
    torch.empty_strided = allocate  # type: ignore[assignment]
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign, assignment]
