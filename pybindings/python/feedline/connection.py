"""One open stream, and what makes batches of it."""

from __future__ import annotations

import json
import logging
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import _native, forks, resume, starved, tensors
from .batch import Batch, FaultReport, make_batch
from .device import DeviceFeed, PinnedRing
from .mixing import Mixing, Place
from .nvtx import ranges
from .output import Output

logger = logging.getLogger("feedline")


@dataclass(frozen=True)
class Job:
    """Everything that a stream is opened with.

    Attributes:
        spec: The job spec of `loader/src/spec.rs`, as Python data.
        indices: Sample numbers of a subset, uint64.
        weights: One weight a sample, float64.
        zero_copy: ``auto``, ``strict`` or ``copy``.
        timeout_s: Longest wait without any progress, in seconds.
        forms: What each field becomes, one of `tensors.FORMS`.
        quarantine: Samples to leave out, as `_native.read_quarantine` gives them.
        device: ``cuda`` or ``cuda:N`` where batches are to be, None for the host.
        device_prefetch: Batches that are copied there before they are asked for.
        is_pinned: Whether the ring is page-locked for the trainer's own copies.
        output: What becomes of pixels.
        images: Numbers of the fields that it applies to.
        mixing: What blends the rows of a batch.
        is_nvtx: Whether a profiler is told of waits, copies and hand-overs.
    """

    spec: dict[str, Any]
    indices: array[int] | None
    weights: array[float] | None
    zero_copy: str
    timeout_s: float
    forms: list[str]
    quarantine: bytes | None = None
    device: str | None = None
    device_prefetch: int = 2
    is_pinned: bool = False
    output: Output | None = None
    images: tuple[int, ...] = ()
    mixing: Mixing | None = None
    is_nvtx: bool = False

    @cached_property
    def selection(self) -> str | None:
        """A hash of what says, beside the shards, which sample a position is: subset, weights, join; None for none of them."""
        return resume.hash_of_selection(self.indices, self.weights, self.spec["rules"].get("join"))

    def place(self, info: _native.BatchInfo) -> Place:
        """Where the batch stands that `info` describes."""
        return Place(self.spec["seed"], info.epoch, info.position, self.spec["rank"])


class Connection:
    """A stream at the sidecar that listens on `socket`."""

    def __init__(self, socket: str, job: Job) -> None:
        self.socket = socket
        self.native = _native.Stream(
            socket, json.dumps(job.spec), job.indices, job.weights, job.timeout_s, job.zero_copy, job.quarantine
        )
        forks.close_in_child(self.native)
        self.generation = forks.generation
        self.info: dict[str, Any] = json.loads(self.native.info())
        layout = self.info["layout"]
        self._job = job
        self._rows = layout["batch_size"]
        self._layout: list[dict[str, Any]] = layout["fields"]
        self._names = {field["name"]: place for place, field in enumerate(self._layout)}
        self._makers: dict[int, list[tensors.Maker]] = {}
        self._pinned = PinnedRing(self.native) if job.is_pinned and job.device is None else None
        self._feed = None if job.device is None else DeviceFeed(self.native, job, self._layout, self._names)
        self._in_wait, self._in_hand_over = ranges(job.is_nvtx, "wait", "hand-over")
        # Where the end of a batch lies past this, no batch follows in its epoch.
        self.last_position = self.info["epoch_positions"] - (
            self.info["global_batch"] if self.info["tail"] == "drop" else 1
        )

    def take(self) -> tuple[Batch, _native.BatchInfo] | None:
        """The next batch and its description, or None at the end of the epoch."""
        if self._feed is not None:
            return self._feed.take()
        with self._in_wait:
            taken = self.native.next(self._job.timeout_s, None if self._pinned is None else self._pinned.current())
        if taken is None:
            return None
        with self._in_hand_over:
            return self._handed_over(*taken)

    def _handed_over(self, info: _native.BatchInfo, buffers: list[Any]) -> tuple[Batch, _native.BatchInfo]:
        """A batch on the host, of what a slot holds."""
        makers = self._makers.get(info.rows) or self._new_makers(info.rows)
        made = [make(buffer) for make, buffer in zip(makers, buffers, strict=True)]
        if self._job.mixing is not None:
            self._job.mixing.run(made, self._job.place(info))
        return make_batch(made, self._names, info, self.generation if info.is_borrowed else None), info

    def seek(self, epoch: int, position: int) -> None:
        """Delivers `epoch` from global sample `position` on."""
        self.rest()
        self.native.seek(epoch, position)
        if self._feed is not None:
            self._feed.starvation.restart()

    def rest(self) -> None:
        """Lets go of device memory until the next `seek`."""
        if self._feed is not None:
            self._feed.clear()

    def close(self) -> None:
        """Ends the stream; tensors made from its batches stay valid."""
        self.rest()
        self.native.close()

    def summary(self) -> dict[str, Any]:
        """What was measured since the epoch began; with a device, how long that starved too, as `starved` has it."""
        summary: dict[str, Any] = json.loads(self.native.summary(self._job.timeout_s))
        if self._feed is not None:
            summary.update(self._feed.starvation.report(summary["sidecar"]["waiting_s"]))
        return summary

    def _new_makers(self, rows: int) -> list[tensors.Maker]:
        kind, job = tensors.framework(), self._job
        makers = tensors.makers(self._layout, job.forms, rows, kind)
        if job.output is not None:
            for place in job.images:
                apply = (
                    job.output.for_torch("cpu") if kind == "torch" else job.output.for_numpy(job.forms[place] == "image")
                )
                makers[place] = _chained(makers[place], apply)
        # Full batches, and the few sizes of a split last one.
        self._makers[rows] = makers
        return makers


def _chained(first: tensors.Maker, second: tensors.Maker) -> tensors.Maker:
    return lambda buffer: second(first(buffer))


class Tally:
    """What one epoch's batches held beside good rows."""

    def __init__(self) -> None:
        self.batches = 0
        self.copies = 0
        self.faults: dict[str, int] = {}

    def count_faults(self, report: list[FaultReport]) -> None:
        """Counts bad samples by class."""
        for fault in report:
            self.faults[fault.fault_class] = self.faults.get(fault.fault_class, 0) + 1

    def words(self, epoch: int, summary: dict[str, Any]) -> str:
        """One line for a person about `epoch`."""
        client = summary["client"]
        faults = ", ".join(f"{count} {fault_class}" for fault_class, count in sorted(self.faults.items())) or "none"
        starving = f"; {starved.words(summary)}" if "gpu_starved_s" in summary else ""
        line = (
            f"epoch {epoch}: {client['batches']} batches, {summary['images_per_s']:.0f} images/s, waited {client['waited_s']:.1f} s "
            f"of {client['wall_s']:.1f} s{starving}; {summary['verdict']['words']}; bad samples: {faults}"
        )
        return f"{line}; {self.copies} batches came as copies" if self.copies else line


def opened_words(info: dict[str, Any], job: Job, rank: str) -> str:
    """One line for a person about a stream that was just opened."""
    rest = "".join(
        f", {words}"
        for words, count in (
            (f"{info['quarantined']} in quarantine", info["quarantined"]),
            (f"{info['dropped']} without a field", info["dropped"]),
            (f"{info['left_out']} left out", info["left_out"]),
            (f"{info['repeated']} repeated", info["repeated"]),
        )
        if count
    )
    return (
        f"{info['sample_count']} samples in {len(job.spec['shards'])} shards, {info['batches_per_epoch']} batches an epoch"
        f"{rest}; {rank}; {info['workers']} decode threads, {info['reader']}"
    )
