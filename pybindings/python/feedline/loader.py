"""The loader: an iterable over epochs of batches, with the surface of `torch.utils.data.DataLoader`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from . import _native, arguments, forks, ranks, resume, sidecar, tensors, trace
from .agreement import Agreement
from .batch import Batch
from .connection import Connection, Job, Tally, opened_words
from .dataset import Dataset, Sampler
from .device import cuda_device, pci_id
from .epochs import Epochs
from .errors import LoaderError, SidecarExitError
from .fields import Field, Image, default_fields, field_specs
from .iterator import BatchIterator
from .join import Join
from .mix import Mix
from .mixing import BatchTransform, Mixing
from .named import ServedRing
from .nvtx import wanted
from .output import Output

logger = logging.getLogger("feedline")

_SPEC_VERSION = 1


class Loader:
    """Batches of a dataset in WebDataset shards or LMDB databases, read, decoded and augmented by a sidecar, in shared memory.

    Each ``iter()`` is one epoch. Order and augmentation are functions of ``seed``, epoch and sample, whatever the number
    of threads, ranks or restarts. Nothing is opened before the first ``iter()``, ``len()``, ``peek()`` or ``.dataset``.

    Args:
        shards: Path or pattern of tar shards or LMDB databases (a folder with ``data.mdb``, or a file), or a list of them:
            braces ``{000000..000003}``, globs, ``::`` between, ``@list.txt`` for a file of them; or a folder of shards, or
            one of plain images, a folder a class, as torchvision's ImageFolder reads it; or a `Mix` or a `Join` of several datasets.
        batch_size: Rows of a batch, per rank.
        shuffle: Whether the order of an epoch is a permutation of all samples; otherwise it is the dataset's own. The
            short word for ``order``.
        fields: What a batch holds, in order: name to `Image`, `Mask`, `Boxes`, `BoxValues`, `Int`, `Float`, `Text`,
            `Json`, `Bytes` or `Array`.
            By default ``image``, a crop of 224 pixels (random with flips where the order is random, else central after a
            resize to 256), and ``label``, the class in ``cls``.
        seed: Seed of order and augmentation, 0 to 2**64 - 1; 0 by default.
        tail: What becomes of samples that do not fill a global batch: ``"short"`` (the default: split over the ranks),
            ``"drop"`` (left out, as by ``drop_last=True``) or ``"pad"`` (filled with repeats, marked in ``batch.valid``).
        order: ``"global"``: a permutation of all samples. ``"block"``, for slow storage: shards are shuffled, and the
            samples of ``block_shards`` consecutive ones permuted as one, so that reads keep to a few shards at a time; how
            well that shuffles is told when the stream opens. ``"sequential"``: the dataset's own order.
        block_shards: With ``order="block"``, shards that are permuted as one. By default as many as hold 16 384 samples on
            average, whatever the batch size, so that a resumed run finds the same order.
        quarantine: Samples to leave out: a list that a sidecar proposed (JSON lines with at least ``shard`` and ``key``), a
            folder of such lists, or several. It is read once, here. All other samples keep their relative order; its hash
            is in ``state_dict``. Give it a copy: proposals grow while runs go on.
        indices: Sample numbers of a subset (k-fold, a held-out part).
        weights: One weight a sample: epochs then draw with replacement.
        epoch_length: With ``weights``, how many samples an epoch draws; as many as there are by default.
        on_error: ``"replace"`` puts another sample in a bad one's row and names the bad one in ``batch.report``;
            ``"raise"`` raises SampleError at the batch that holds it. By default the first when the order is random, else
            the second.
        priority: Share of the sidecar's workers beside those of its other jobs, 0.01 to 100: while both wait for batches, a
            job of 2 gets twice as much of their time as one of 1.
        error_budget: Share of bad samples over which the run stops with BudgetError.
        profile: What the keys and values of an LMDB database mean: ``"auto"`` finds it and says so in the log; ``"plain"``
            (key to image), ``"text-recognition"``, ``"super-resolution"``, ``"datum"``, ``"lsun"``, ``"folder"`` (serialised
            tuples: fields ``0`` or ``image``, ``1`` or ``label``), ``"length-keys"``, ``"open-catalyst"`` (refused).
        database: The database to read, where an LMDB file has several inside.
        key_order: The order of an LMDB database's samples: ``"natural"`` (``2`` before ``10``), ``"bytes"`` or
            ``"meta-file"``; by default that of the meta file or, where all keys are numbers, the natural one.
        device: ``"cuda"`` (the current device at the first batch) or ``"cuda:N"``: batches are tensors there. They are
            copied from page-locked shared memory on a stream of the loader's own, and are ready for the stream that is
            current at ``next()``, without a wait. Texts, bytes and JSON objects stay on the host.
        device_prefetch: With ``device``, batches that are copied before they are asked for, 1 to 32.
        output: An `Output`: what becomes of pixels, where the batch arrives. By default they are uint8.
        batch_transform: `MixUp` or `CutMix`, or a list of them, of which each batch gets one by chance. They act where the
            batch arrives, after ``output``, and make float32 labels of shape (N, classes).
        layout: ``"NHWC"``: images are a ``channels_last`` view (N, 3, H, W) in torch, (N, H, W, 3) in NumPy. ``"NCHW"``:
            contiguous (N, 3, H, W) in both.
        zero_copy: ``"auto"``: tensors are views of shared memory, except small ones (below 64 KiB a batch), and except
            while live batches hold all slots but two. ``"strict"`` raises SlotsHeldError then. ``"copy"`` always copies.
        slots: Slots of the ring, 4 to 64: how many batches may be ready or held. Each takes a batch's bytes.
        ring: ``"memfd"``: the ring is sealed memory without a name. ``"named"``: it lies in named segments below
            ``/dev/shm``, so that a program in another language reads its batches by name: see `serve_ring`.
        workers: Decode threads of a private sidecar; the usable cores less one by default.
        cache: Memory in which a private sidecar keeps encoded samples for later epochs, as in ``"8G"`` or a number of bytes;
            none by default. For shards that are read past the page cache, lie on a network file system, or are compressed:
            the page cache does the same for all others, and gives way when memory is short. What fits is kept, so a cache
            of 30 % of the samples' bytes saves 30 % of the reads.
        memory: Most memory of a private sidecar for rings, reads, ``cache``, unpacked shards and indexes together; three
            quarters of what machine and control group have free at its start by default.
        sidecar: Socket of a running ``feedline serve``; else ``FEEDLINE_SOCKET``; else a private one is started.
        rank: This process's number among ``world_size``; found from torch.distributed or the launcher by default.
        world_size: How many processes share an epoch.
        timeout: Longest wait without any progress, in seconds: 600 by default.
        collate_fn: Called with each `Batch`; its result is delivered instead.
        name: Name of the job in logs and metrics.
        nvtx: Whether waits, copies and hand-overs are NVTX ranges for a profiler; by default as ``FEEDLINE_NVTX=1`` says.
        drop_last: As ``tail="drop"``.
        num_workers: As ``workers``; 0 leaves the choice to the sidecar.
        prefetch_factor: Batches ahead per rank; sizes the ring in place of ``slots``.
        generator: A torch generator whose initial seed is taken.
        pin_memory: Without ``device``: whether the ring is page-locked once CUDA is initialised, so that
            ``batch.to("cuda", non_blocking=True)`` runs beside kernels. The memory of a batch that is let go of waits for
            what is queued on the current stream at the next ``next()``; `Batch.release_after` names others.
        persistent_workers: Accepted; the sidecar always outlives an epoch.
        pin_memory_device: As ``pin_memory``; the current device is taken.
        in_order: Accepted; batches always come in plan order.
        missing_shards: Shards that are named and not there: ``"raise"`` or ``"skip"``, which lists them in a notice.
        key_rule: Where a member's name is cut into key and field: ``"first_dot"`` of the last path component, as
            WebDataset does, or ``"last_dot"``.
        duplicates: A second member of a sample for one field: ``"error"``, ``"first"`` or ``"last"`` counts, or
            ``"drop_sample"``.
        unsorted: Members of a sample that do not follow each other in a tar: ``"error"`` or ``"regroup"``.
        damaged: A shard that is cut off or damaged: ``"error"``, or ``"skip_rest"``, which uses the samples before the
            damage. What was skipped, dropped or joined is counted and located in the log when the dataset is opened.
        missing: Samples without a field that has no ``default``: ``"fault"``, they are bad samples of class missing-field;
            ``"drop"``, they are left out of every epoch, counted and located in the log when the dataset is opened, while
            all others keep their relative order. One word for all fields, or name to word. A shard's index tells, so
            nothing is read for it.
        labels: A table whose columns become fields: path of a ``.csv``, ``.tsv`` or ``.jsonl`` file, or (path, name of the
            column with the samples' keys); by default the first column, in JSON lines ``key``. Keys may be written as
            file names. Samples without a row and rows without a sample are counted in the log.
        sampler: Refused, with the way out.
        batch_sampler: Refused, with the way out.
        worker_init_fn: Ignored with a notice: there are no Python workers.
        multiprocessing_context: Ignored with a notice: there are no Python workers.

    Raises:
        ValueError: An argument cannot be, a shard is not there, or a pattern matches nothing; the message has the fix.
        TypeError: An argument is of the wrong kind.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Mix | Join,
        batch_size: int = 1,
        shuffle: bool | None = None,
        *,
        fields: Mapping[str, Field] | None = None,
        seed: int | None = None,
        tail: Literal["short", "drop", "pad"] | None = None,
        order: Literal["global", "block", "sequential"] | None = None,
        block_shards: int | None = None,
        quarantine: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        indices: Any = None,
        weights: Any = None,
        epoch_length: int | None = None,
        on_error: Literal["replace", "raise"] | None = None,
        error_budget: float = 0.01,
        priority: float = 1.0,
        profile: str = "auto",
        database: str | None = None,
        key_order: Literal["natural", "bytes", "meta-file"] | None = None,
        device: Any = None,
        device_prefetch: int = 2,
        output: Output | None = None,
        batch_transform: BatchTransform | Iterable[BatchTransform] | None = None,
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        zero_copy: Literal["auto", "strict", "copy"] = "auto",
        slots: int | None = None,
        ring: Literal["memfd", "named"] = "memfd",
        workers: int | None = None,
        cache: int | str | None = None,
        memory: int | str | None = None,
        sidecar: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        timeout: float | None = None,
        collate_fn: Callable[[Batch], Any] | None = None,
        name: str | None = None,
        nvtx: bool | None = None,
        drop_last: bool | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        generator: Any = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        missing_shards: Literal["raise", "skip"] = "raise",
        key_rule: Literal["first_dot", "last_dot"] = "first_dot",
        duplicates: Literal["error", "first", "last", "drop_sample"] = "error",
        unsorted: Literal["error", "regroup"] = "error",
        damaged: Literal["error", "skip_rest"] = "error",
        missing: Literal["fault", "drop"] | Mapping[str, Literal["fault", "drop"]] = "fault",
        labels: str | os.PathLike[str] | tuple[str | os.PathLike[str], str] | None = None,
        sampler: None = None,
        batch_sampler: None = None,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
    ) -> None:
        arguments.refuse_samplers(sampler, batch_sampler)
        arguments.ignore_with_notice(worker_init_fn, multiprocessing_context)
        ranks.check(rank, world_size)
        if indices is not None and weights is not None:
            raise ValueError("indices= and weights= cannot be combined: give samples that are left out a weight of 0")
        if epoch_length is not None and weights is None:
            raise ValueError(
                "epoch_length= belongs to weights=: without them an epoch is every sample once (a Mix has length=)"
            )
        if epoch_length is not None:
            epoch_length = arguments.int_within("epoch_length", epoch_length, 1, arguments.NUMBER_MAX)
        if collate_fn is not None and not callable(collate_fn):
            raise TypeError(f"collate_fn must be callable with a Batch, got {collate_fn!r}")
        if batch_size is None:
            raise ValueError("batch_size=None, DataLoader's way to deliver single samples, is not offered: pass 1")
        self.batch_size = arguments.int_within("batch_size", batch_size, 1, arguments.BATCH_SIZE_MAX)
        self.drop_last = arguments.tail_rule(tail, drop_last) == "drop"
        self.collate_fn = collate_fn
        self.pin_memory = bool(pin_memory)
        self._rank, self._world_size = rank, world_size
        self._sidecar = arguments.socket_path(sidecar)
        self._workers = arguments.worker_count(workers, num_workers)
        self._limits = arguments.memory_options(memory, cache)
        order_spec = arguments.order_rule(order, block_shards, shuffle, weights is not None)
        is_random = order_spec != "sequential"
        fields = default_fields(is_random) if fields is None else fields
        mix = shards if isinstance(shards, Mix) else None
        if mix is not None and (indices is not None or weights is not None):
            raise ValueError("a Mix takes neither indices= nor weights=: they belong to one dataset")
        join = shards if isinstance(shards, Join) else None
        if mix is not None:
            datasets = [patterns for patterns, _ in mix.parts]
        else:
            datasets = [arguments.shard_patterns(shards)] if join is None else list(join.parts.values())
        skip_missing = arguments.one_of("missing_shards", missing_shards, ("raise", "skip")) == "skip"
        expanded = [_expand(patterns, skip_missing) for patterns in datasets]
        left_out, quarantine_hash = (
            (None, None) if quarantine is None else _native.read_quarantine(arguments.quarantine_paths(quarantine))
        )
        spec = {
            "version": _SPEC_VERSION,
            "name": arguments.job_name(name, " + ".join(os.path.basename(patterns[0]) for patterns in datasets)),
            "shards": [shard for part in expanded for shard in part],
            "rules": {
                "key_rule": arguments.one_of("key_rule", key_rule, ("first_dot", "last_dot")),
                "duplicates": arguments.one_of("duplicates", duplicates, ("error", "first", "last", "drop_sample")),
                "unsorted": arguments.one_of("unsorted", unsorted, ("error", "regroup")),
                "damaged": arguments.one_of("damaged", damaged, ("error", "skip_rest")),
                "labels": arguments.label_table(labels),
                **({} if join is None else {"join": join.spec([len(part) for part in expanded])}),
                **arguments.database_rules(profile, database, key_order),
            },
            "fields": field_specs(fields, arguments.pixel_layout(layout)),
            "batch_size": self.batch_size,
            "order": order_spec,
            "seed": arguments.seed_number(seed, generator),
            "rank": 0,
            "world_size": 1,
            "tail": arguments.tail_rule(tail, drop_last),
            "epoch_length": epoch_length,
            "mix": None,
            "quarantine": quarantine_hash,
            "drop_missing": arguments.dropped_fields(missing, fields),
            "on_error": arguments.one_of(
                "on_error", on_error or ("replace" if is_random else "raise"), ("replace", "raise")
            ),
            "error_budget": arguments.share("error_budget", error_budget),
            "priority": arguments.job_priority(priority),
            "slots": arguments.slot_count(slots, prefetch_factor),
            "ring": arguments.one_of("ring", ring, ("memfd", "named")),
        }
        if mix is not None:
            parts = [
                {"shards": len(part), "weight": weight} for part, (_, weight) in zip(expanded, mix.parts, strict=True)
            ]
            spec.update(mix={"parts": parts, "stop": mix.stop}, epoch_length=mix.length)
        self._job = Job(
            spec,
            arguments.sample_numbers(indices),
            arguments.sample_weights(weights),
            arguments.one_of("zero_copy", zero_copy, ("auto", "strict", "copy")),
            arguments.timeout_seconds(timeout),
            ["tensor" if field.form == "image" and layout == "NCHW" else field.form for field in fields.values()],
            left_out,
            cuda_device(device),
            arguments.int_within("device_prefetch", device_prefetch, 1, 32),
            bool(pin_memory or pin_memory_device),
            output,
            tuple(place for place, field in enumerate(fields.values()) if isinstance(field, Image)),
            None if batch_transform is None else Mixing(batch_transform, fields, layout == "NHWC"),
            wanted(nvtx),
        )
        self._check_framework()
        _native.check_spec(json.dumps(spec))
        self._epochs = Epochs()
        self._agreement = Agreement(name or None)
        #: The trace of a restored state, until this process's rank is known.
        self._loaded_trace: Mapping[str, Any] | None = trace.NOTHING
        self._has_rank = False
        #: What a restored state says of the dataset, until a stream has been compared with it.
        self._expected: dict[str, Any] | None = None
        self._reset()

    def _check_framework(self) -> None:
        """Refuses what needs torch where batches are NumPy's."""
        job = self._job
        if job.output is not None and not isinstance(job.output, Output):
            raise TypeError(f"output must be a feedline.Output, got {job.output!r}")
        if tensors.framework() == "torch":
            return
        if job.device is not None:
            raise ValueError(f"device={job.device!r} needs torch, and batches are NumPy arrays here: install torch, or leave it out")
        if job.output is not None:
            job.output.for_numpy(is_channels_last=True)
        # NumPy's arrays go to no device.
        self._job = replace(job, is_pinned=False)

    def _reset(self) -> None:
        """Everything that belongs to one process."""
        self._idle: Connection | None = None
        self._info: dict[str, Any] | None = None
        self._reported: set[int] = set()
        self._has_warned = False
        self._generation = forks.generation
        self.copied_batches = 0

    # Epochs.

    def __iter__(self) -> BatchIterator:
        """Starts an epoch.

        The number advances when an epoch is exhausted, or when a new iteration follows one that was left after more than
        its first batch. A second live iterator gets a stream of its own.
        """
        start = self._epochs.upcoming()
        connection = self._connect(start)
        try:
            self._agreement.offer_start(self._job.spec, self._epochs.count, *start)
        except ValueError:
            connection.close()
            raise
        return BatchIterator(self, connection, self._epochs.begin())

    def __len__(self) -> int:
        """This rank's batches of a whole epoch; opens a stream where none was open."""
        return int(self._known()["batches_per_epoch"])

    def peek(self) -> Any:
        """The first batch of the upcoming iteration, which that iteration delivers again."""
        connection = self._connect(self._epochs.upcoming())
        taken = connection.take()
        if taken is None:
            raise ValueError(f"the epoch has no batch left at {self._epochs.upcoming()}: (epoch, position)")
        self._put_back(connection)
        return self._deliver(*taken, Tally())

    def serve_ring(self) -> ServedRing:
        """Opens a stream whose batches another program takes, by the ring's name; needs ``ring="named"``.

        It starts where the next iteration would. Iterations over this loader have streams and rings of their own, and do
        not see those batches; nor does ``state_dict``.

        Returns:
            The ring, which is filled until it is closed or this process ends.
        Raises:
            ValueError: The loader has another ``ring``, a device, or a field whose rows have no one size.
        """
        ServedRing.check_job(self._job)
        self.close()
        return ServedRing(self._connect(self._epochs.upcoming()), self._job.timeout_s)

    @property
    def epoch(self) -> int:
        """The epoch being delivered, or the next one to be."""
        return self._epochs.state()[0]

    def set_epoch(self, epoch: int) -> None:
        """The next iteration delivers `epoch`; a restored position in it is kept."""
        self._epochs.set_epoch(arguments.int_within("epoch", epoch, 0, arguments.NUMBER_MAX))

    def state_dict(self) -> dict[str, Any]:
        """Where a resumed run goes on: epoch, position in global samples, and what the order depends on.

        An iteration that was left after its first batch does not count, as its next ``iter()`` starts anew. The position is
        global, so any rank's state resumes all ranks; only the trace in it is this rank's own (`merge_states`).
        """
        epoch, position = self._epochs.state()
        fixed = {name: self._job.spec[name] for name in ("seed", "order", "mix", "quarantine", "drop_missing")}
        if self._expected is not None:
            fixed.update(self._expected)
        elif self._info is not None:
            fixed.update(resume.remembered(self._info))
        fixed["selection"] = self._job.selection
        return {"version": 1, "epoch": epoch, "position": position, **fixed, "trace": self._trace_of(self._epochs.trace())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state_dict` was taken, at the cost of a seek.

        It refuses to where the dataset changed since, so that the same position is another sample; where only values of an
        LMDB database may have changed, it warns.
        """
        numbers = arguments.state_numbers(state, self._job.spec)
        resume.check_selection(state, self._job.selection)
        self._loaded_trace = trace.check_saved(state.get("trace"))
        self._has_rank = False
        self._epochs.restore(*numbers, None)
        self._expected = {name: state[name] for name in resume.NAMES if name in state}

    @property
    def trace_hash(self) -> str:
        """What proves which rows this rank has consumed, in this run and in those that it resumes.

        It covers seed, epoch, global position, sample and drawn parameters of each row. `feedline.merge_trace` of all ranks'
        hashes is the same for any world size, number of decode threads and interruption.

        Returns:
            32 hexadecimal digits.

        Raises:
            ValueError: The run goes on from another rank's state, which does not tell what this rank had consumed.
        """
        if self._info is None:
            self._find_rank()
        self._settle_trace()
        lanes = self._epochs.trace()
        if lanes is None:
            raise ValueError(
                "the trace is not known: the state that this rank goes on with has none, or that of another rank or world "
                "size; save the states of all ranks, and load what feedline.merge_states makes of them"
            )
        return trace.to_text(lanes)

    def _trace_of(self, lanes: trace.Lanes | None) -> Mapping[str, Any] | None:
        """What a state has of the trace, and which rank's that is; a run that has not begun is no rank's yet."""
        if not self._has_rank:
            return self._loaded_trace
        return None if lanes is None else trace.saved(lanes, self._job.spec["rank"], self._job.spec["world_size"])

    def _find_rank(self) -> ranks.Rank:
        found = ranks.find(self._rank, self._world_size)
        self._job.spec.update(rank=found.rank, world_size=found.world_size)
        return found

    def _settle_trace(self) -> None:
        """A loaded trace goes on where it is this rank's, which is known now."""
        if not self._has_rank:
            self._has_rank = True
            spec = self._job.spec
            self._epochs.count_from(trace.for_rank(self._loaded_trace, spec["rank"], spec["world_size"]))

    # DataLoader's surface.

    @property
    def dataset(self) -> Dataset:
        """The dataset's length and classes; opens a stream where none was open."""
        info = self._known()
        return Dataset(int(info["sample_count"]), info["classes"])

    @property
    def sampler(self) -> Sampler:
        """What frameworks call ``set_epoch`` on."""
        return Sampler(self)

    @property
    def num_workers(self) -> int:
        """Decode threads as asked for; 0 where the sidecar chooses."""
        return self._workers or 0

    def close(self) -> None:
        """Ends the idle stream, if any. Tensors stay valid; a later iteration opens a new stream."""
        if self._idle is not None:
            self._idle.close()
        self._idle = None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in _PROCESS_STATE}
        state["_epochs"] = self._epochs.upcoming()
        # The copy may be another rank's.
        state["_loaded_trace"], state["_has_rank"] = self._trace_of(self._epochs.counted()), False
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epochs = Epochs()
        epoch, position = state["_epochs"]
        self._epochs.restore(epoch, position, None)
        if self._agreement.pid == os.getpid():
            self._agreement = Agreement(self._agreement.name)
        self._reset()

    def __repr__(self) -> str:
        spec = self._job.spec
        names = ", ".join(field["name"] for field in spec["fields"])
        return f"Loader({spec['name']!r}, {len(spec['shards'])} shards, batch_size={self.batch_size}, fields: {names})"

    # Connections.

    def _known(self) -> dict[str, Any]:
        if self._info is None or self._generation != forks.generation:
            self._put_back(self._connect(self._epochs.upcoming()))
        assert self._info is not None, "a connection has been made"
        return self._info

    def _connect(self, start: tuple[int, int]) -> Connection:
        """An open stream that stands at `start`: the idle one, or a new one."""
        if self._generation != forks.generation:
            self._reset()
        connection, self._idle = self._idle, None
        if connection is not None:
            with suppress(LoaderError):
                connection.native.check_alive()
                self._check_expected(connection)
                self._settle_trace()
                connection.seek(*start)
                return connection
            connection.close()
        socket = sidecar.locate(self._sidecar, self._workers, self._limits)
        found = self._find_rank()
        if device := pci_id(self._job.device, self._job.is_pinned):
            self._job.spec["device_pci"] = device
        try:
            connection = Connection(socket, self._job)
        except SidecarExitError as error:
            sidecar.explain(error, socket)
            raise
        if self._info is None:
            logger.info("%s", opened_words(connection.info, self._job, str(found)))
            for notice in connection.info["notices"]:
                logger.info("%s", notice)
        self._check_expected(connection)
        self._settle_trace()
        self._agree(connection)
        self._info = connection.info
        connection.seek(*start)
        return connection

    def _agree(self, connection: Connection) -> None:
        """Compares the job with those of the other ranks."""
        job = self._job
        try:
            self._agreement.offer_job(job.spec, connection.info, {"indices": job.indices, "weights": job.weights})
        except ValueError:
            connection.close()
            raise

    def _check_expected(self, connection: Connection) -> None:
        """Compares a stream with the state that it is to go on with."""
        if self._expected is None:
            return
        try:
            resume.check(self._expected, connection.info)
        except ValueError:
            connection.close()
            raise
        self._expected = None

    def _put_back(self, connection: Connection) -> None:
        """Keeps one idle stream, so that prefetch crosses the border of an epoch."""
        if self._idle is None and connection.generation == forks.generation:
            connection.rest()
            self._idle = connection
        else:
            connection.close()

    def _deliver(self, batch: Batch, info: _native.BatchInfo, tally: Tally) -> Any:
        """What the user gets of `batch`; the rare things are told."""
        if info.is_overflow:
            self._count_copy(tally)
        if info.fault_count:
            report = batch.report
            tally.count_faults(report)
            for fault in report:
                if fault.sample not in self._reported:
                    self._reported.add(fault.sample)
                    logger.warning("bad sample replaced: %s", fault)
        return batch if self.collate_fn is None else self.collate_fn(batch)

    def _count_copy(self, tally: Tally) -> None:
        tally.copies += 1
        self.copied_batches += 1
        if not self._has_warned:
            self._has_warned = True
            slots = self._job.spec["slots"]
            logger.warning(
                "live batches hold %d of %d slots, so this batch comes as a private copy, as do others while that lasts: "
                "let go of earlier batches, or raise slots=; batches that come as copies are counted, not warned of again",
                slots - 2,
                slots,
            )


_PROCESS_STATE = frozenset({"_idle", "_info", "_reported", "_has_warned", "_generation", "copied_batches"})


def _expand(patterns: list[str], skip_missing: bool) -> list[str]:
    """The shards that `patterns` name; those that are missing and skipped are told."""
    shards, missing = _native.expand_shards(patterns, skip_missing)
    if missing is not None:
        logger.warning("%s", missing)
    return shards
