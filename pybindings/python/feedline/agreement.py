"""What the ranks of a run must have in common, compared when each starts: a run that disagrees is no run.

Every rank offers its job, and the epoch and position of each iteration, under a name that all ranks make alike; the first
to come sets the value, the others compare theirs with it. Nobody waits for anybody, so a loader that only one rank uses
never hangs. The place to meet is the store of an initialised ``torch.distributed``, which spans all nodes; else, where a
launcher has started several ranks on this machine, a file in the runtime folder, which spans those. Where there is neither,
nothing is compared here, and the traces of the ranks (`feedline.merge_trace`) still tell.
"""

from __future__ import annotations

import atexit
import fcntl
import itertools
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from . import ranks, sidecar

logger = logging.getLogger("feedline")

#: What of a job may differ between ranks, or is compared in another form.
_OWN = frozenset({"rank", "shards", "slots", "name", "device_pci", "priority"})

#: Longest value that a message shows, in characters.
_SHOWN = 120

#: How many loaders of each name this process has made.
_made: dict[str, itertools.count[int]] = {}


class Meeting(Protocol):
    """Where ranks meet."""

    def first(self, key: str, value: str) -> str:
        """Sets `key` to `value` where nobody has set it; returns what it is."""


class StoreMeeting:
    """The key-value store of a process group."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def first(self, key: str, value: str) -> str:
        """As `Meeting.first`."""
        found: bytes | str = self._store.compare_set(f"feedline/{key}", "", value)
        return found.decode() if isinstance(found, bytes) else found


class FileMeeting:
    """A file of lines that the ranks of one machine append to; it goes with the last of them, or when the next run sweeps."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            self._file = os.open(path, flags, 0o600)
            # Shared for as long as this process lives: who gets it alone may remove the file.
            fcntl.flock(self._file, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), os.stat(path)):
                    atexit.register(self._leave, path)
                    return
            os.close(self._file)

    def _leave(self, path: Path) -> None:
        """Lets go of the file at the end of the process; the last one takes it along."""
        os.close(self._file)
        _remove_unused(path)

    def first(self, key: str, value: str) -> str:
        """As `Meeting.first`."""
        # Record locks, beside the lock on the file as a whole: held for the moment of a look.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            size = os.fstat(self._file).st_size
            for line in os.pread(self._file, size, 0).splitlines():
                found_key, found = json.loads(line)
                if found_key == key:
                    return str(found)
            os.write(self._file, json.dumps([key, value]).encode() + b"\n")
            return value
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def sweep(folder: Path) -> None:
    """Removes the meeting files of runs that are over."""
    for path in folder.glob("run-*.ranks"):
        _remove_unused(path)


def _remove_unused(path: Path) -> None:
    """Removes a meeting file unless another process has it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


_meeting: Meeting | None = None


def meeting() -> Meeting | None:
    """Where the ranks of this process's run meet, if there is such a place."""
    global _meeting
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        with suppress(AttributeError):
            return StoreMeeting(distributed.distributed_c10d._get_default_store())
    if _meeting is None and (node := ranks.node()) is not None:
        folder = sidecar.runtime_folder()
        sweep(folder)
        _meeting = FileMeeting(folder / f"run-{node.run_name}.ranks")
    return _meeting


def _numbered(name: str) -> str:
    """The name with its number among those of this process."""
    return f"{name}/{next(_made.setdefault(name, itertools.count()))}"


class Agreement:
    """One loader's part in what the ranks compare.

    Args:
        name: The name that the loader was given. Ranks make loaders of one name in the same order, and start to iterate over
            those without one in the same order: what they are called after, their dataset, may be what ranks disagree about.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._place = None if name is None else _numbered(name)
        self._has_offered_job = False
        #: The process that made it; a copy within it is another loader.
        self.pid = os.getpid()

    def offer_job(self, spec: Mapping[str, Any], info: Mapping[str, Any], lists: Mapping[str, Any]) -> None:
        """Compares the job with that of the rank that came first.

        Args:
            spec: The job.
            info: What the sidecar says of the open stream.
            lists: Buffers of sample numbers or weights that belong to the job, or None.

        Raises:
            ValueError: They differ; with both values of each difference.
        """
        if self._has_offered_job or spec["world_size"] == 1:
            return
        if self._place is None:
            self._place = _numbered("")
        names = "\n".join(os.path.basename(path) for path in spec["shards"])
        offered = {
            **{name: value for name, value in spec.items() if name not in _OWN},
            # Nodes may keep a dataset in different folders.
            **({"dataset": spec["name"]} if self.name is None else {}),
            "number of shards": len(spec["shards"]),
            "hash of the shards' names": _hash(names.encode()),
            "samples": info["sample_count"],
            "positions of an epoch": info["epoch_positions"],
            **{f"hash of {name}": None if value is None else _hash(bytes(value)) for name, value in lists.items()},
        }
        self._compare("job", spec["rank"], offered)
        self._has_offered_job = True

    def offer_start(self, spec: Mapping[str, Any], counted: int, epoch: int, position: int) -> None:
        """Compares where an iteration starts with where that of the rank that came first did.

        Args:
            spec: The job.
            counted: Iterations of this loader before that count as epochs.
            epoch: The epoch that starts.
            position: The global position in it.

        Raises:
            ValueError: They differ.
        """
        if spec["world_size"] > 1:
            self._compare(f"start {counted}", spec["rank"], {"epoch": epoch, "position": position})

    def _compare(self, what: str, rank: int, offered: dict[str, Any]) -> None:
        place = meeting()
        if place is None:
            return
        try:
            text = json.dumps([rank, offered])
            other_rank, other = json.loads(place.first(f"{self._place}/{what}", text))
        except Exception as error:  # A store has errors of many libraries; none of them says that ranks disagree.
            logger.warning("cannot compare %s with other ranks: %s", what, error)
            return
        offered = json.loads(text)[1]
        differing = [name for name in {**other, **offered} if other.get(name) != offered.get(name)]
        if differing:
            words = "; ".join(
                f"{name} is {_shown(other.get(name))} at rank {other_rank} and {_shown(offered.get(name))} at rank {rank}"
                for name in differing
            )
            other_loader = "" if self.name is not None else ", or name= to loaders that not every rank has"
            raise ValueError(
                f"the ranks disagree about loader {self._place}: {words}; give every rank the same arguments, dataset and state{other_loader}"
            )


def _hash(value: bytes) -> str:
    return blake2b(value, digest_size=8).hexdigest()


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… (hash {_hash(text.encode())})"
