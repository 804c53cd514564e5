"""Batches on a GPU: copied ahead on a stream of the loader's own, or taken from page-locked memory by the trainer.

Nothing here waits for the device. CUDA is initialised by the user, or by the first batch for a device that was asked for;
no call names another device than that.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from .batch import Batch, make_batch, over_tensors, tensors_of
from .errors import GraphCaptureError, ResourceError
from .nvtx import ranges
from .starved import Request, Starvation
from .tensors import FIXED_FORMS, makers, placed

if TYPE_CHECKING:
    from ._native import BatchInfo, Stream
    from .connection import Job

logger = logging.getLogger("feedline")


def cuda_device(device: Any) -> str | None:
    """``cuda`` or ``cuda:N`` of what the user named, None for the host."""
    if device is None:
        return None
    name = f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else str(device)
    kind, colon, number = name.partition(":")
    if kind == "cpu":
        return None
    if name.startswith(("GPU-", "MIG-")):
        raise ValueError(
            f"device={name!r}: a GPU, or a part of one, is chosen by its UUID with the variable CUDA_VISIBLE_DEVICES={name}, set "
            'before CUDA is initialised; then device="cuda" is that one'
        )
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise ValueError(f"device must be \"cuda\", \"cuda:N\", \"cpu\" or None, got {device!r}")
    return name


def pci_id(device: str | None, is_pinned: bool) -> str | None:
    """PCI id of the GPU that batches go to; None where there is none, or CUDA is not initialised yet.

    A sidecar lays the ring on the memory node of that GPU. To ask sooner would initialise CUDA before the user does.
    """
    if device is None and not is_pinned:
        return None
    import torch

    if not torch.cuda.is_initialized():
        return None
    _, _, number = (device or "cuda").partition(":")
    try:
        found = torch.cuda.get_device_properties(int(number) if number else torch.cuda.current_device())
    except (AssertionError, RuntimeError) as error:
        # No such device, most likely: who copies to it says so. Here it is about speed only.
        logger.debug("the ring may be on another memory node than %s: %s", device or "the GPU", error)
        return None
    parts: list[Any] = [getattr(found, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if any(part is None for part in parts):
        return None
    return "{:04x}:{:02x}:{:02x}.0".format(*parts)


class PinnedRing:
    """Page-locks a stream's ring when CUDA is there, for copies that the trainer makes itself."""

    def __init__(self, native: Stream) -> None:
        self._native = native
        self._device: int | None = None

    def current(self) -> int | None:
        """Handle of the current stream of the device for which the ring is page-locked; None before CUDA is initialised.

        Before that no device is chosen: a rank that has not yet said which is its own would get a context on GPU 0.
        """
        import torch

        if not torch.cuda.is_initialized():
            return None
        _refuse_capture(torch)
        if self._device is None:
            device = torch.cuda.current_device()
            lock_pages(self._native, device, is_device_alone=False)
            self._device = device
        return int(torch.cuda.current_stream(self._device).cuda_stream)


class _Copied(NamedTuple):
    """A batch on the device, the events around its copies, and its tensors."""

    batch: Batch
    info: BatchInfo
    began: Any
    done: Any
    tensors: list[Any]


class DeviceFeed:
    """Takes batches of a stream and has them on a device, ``ahead`` of them before they are asked for."""

    def __init__(self, native: Stream, job: Job, layout: list[dict[str, Any]], names: dict[str, int]) -> None:
        self._native = native
        self._job = job
        self._layout = layout
        self._names = names
        self._ahead: deque[Any] = deque()
        self._device: Any = None
        self._in_wait, self._in_copy, self._in_hand_over = ranges(job.is_nvtx, "wait", "copy", "hand-over")
        #: Time that the device stood idle for want of a batch.
        self.starvation = Starvation()

    def clear(self) -> None:
        """Lets go of batches that were copied ahead."""
        self._ahead.clear()

    def take(self) -> tuple[Batch, BatchInfo] | None:
        """The next batch, ready for the current stream, and its description; None at the end of the epoch.

        What failed while copying ahead is raised in its place, after the batches before it.
        """
        if self._device is None:
            self._start()
        torch, native, ahead = self._torch, self._native, self._ahead
        _refuse_capture(torch)
        needed, was_ready = None, True
        if not ahead:
            needed, was_ready = self._needed(), native.has_ready()
            with self._in_wait:
                taken = native.next(self._job.timeout_s)
            if taken is None:
                return None
            ahead.append(self._copied(*taken))
        elif not isinstance(ahead[0], Exception) and not ahead[0].done.query():
            needed = self._needed()
        try:
            while len(ahead) <= self._job.device_prefetch and native.has_ready():
                taken = native.next(self._job.timeout_s)
                assert taken is not None, "a batch is ready"
                ahead.append(self._copied(*taken))
        except Exception as error:
            ahead.append(error)
        first = ahead.popleft()
        if isinstance(first, Exception):
            raise first
        if needed is not None:
            self.starvation.note(Request(needed, first.began, first.done, was_ready))
        with self._in_hand_over:
            return self._handed_over(first)

    def _needed(self) -> Any:
        """An event on the user's stream, which comes when the device has nothing left to do there."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def _handed_over(self, copied: _Copied) -> tuple[Batch, BatchInfo]:
        """A batch for the stream that is current."""
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(copied.done)
        for tensor in copied.tensors:
            # Its memory is the copy stream's, which must not have it back before the trainer's kernels are done.
            tensor.record_stream(current)
        return copied.batch, copied.info

    def _start(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ResourceError(
                f"device={self._job.device!r} needs a GPU that torch can use, and torch.cuda.is_available() says no: leave "
                "device= out, or install a driver and a torch built for CUDA"
            )
        device = torch.device(self._job.device)
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        _refuse_capture(torch)
        self._torch = torch
        self._copies = torch.cuda.Stream(device)
        self._output = None
        if self._job.output is not None:
            with torch.cuda.stream(self._copies):
                self._output = self._job.output.for_torch(device)
        lock_pages(self._native, device.index, is_device_alone=True)
        self._device = device

    def _copied(self, info: BatchInfo, held: list[Any]) -> _Copied:
        """A batch whose copies are queued."""
        torch, device, rows = self._torch, self._device, info.rows
        made: list[Any] = []
        sources, targets = [], []
        mixing = self._job.mixing
        if mixing is not None:
            mixing.check({place: self._on_host(place, held[place], rows) for place in mixing.checked()})
        began, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._in_copy, torch.cuda.stream(self._copies):
            began.record(self._copies)
            for place, (field, form) in enumerate(zip(self._layout, self._job.forms, strict=True)):
                if form in FIXED_FORMS:
                    shape, strides = placed(field, form == "image", rows)
                    made.append(torch.empty_strided(shape, strides, dtype=getattr(torch, field["dtype"]), device=device))
                    if 0 not in shape:
                        sources.append(held[place])
                        targets.append(made[-1].data_ptr())
                else:
                    value = makers([field], [form], rows, "torch")[0](held[place])
                    made.append(over_tensors(value, lambda tensor: tensor.to(device)))
            self._native.copy_to_device(sources, targets, self._copies.cuda_stream)
            if self._output is not None:
                for place in self._job.images:
                    made[place] = self._output(made[place])
            if mixing is not None:
                mixing.run(made, self._job.place(info))
            done.record(self._copies)
        tensors = [tensor for value in made for tensor in tensors_of(value)]
        return _Copied(make_batch(made, self._names, info, None), info, began, done, tensors)

    def _on_host(self, place: int, buffer: Any, rows: int) -> Any:
        """A field of fixed rows as it lies in the ring, as NumPy's array."""
        return makers([self._layout[place]], ["tensor"], rows, "numpy")[0](buffer)


def lock_pages(native: Stream, device: int, is_device_alone: bool) -> None:
    """Page-locks the ring of `native` for device number `device`, and says how far that got."""
    locked, total, refusal = native.page_lock(device, is_device_alone)
    if locked == total:
        logger.info("page-locked the ring, %s%s", _mebibytes(total), "" if refusal is None else f": {refusal}")
        return
    logger.warning(
        "page-locked %s of the ring's %s: %s; copies from the rest are right but slower, and take the trainer's time. Ways "
        "out: fewer slots=, a smaller batch, a container with more memory or a higher locked-memory limit (ulimit -l)",
        _mebibytes(locked),
        _mebibytes(total),
        refusal,
    )


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _refuse_capture(torch: Any) -> None:
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise GraphCaptureError(
            "next() while a CUDA graph is being captured: the graph would replay the copy of this one batch for ever; take "
            "the batch before the capture, and copy later ones into its tensors"
        )
