"""Rings that another program reads by name."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import forks
from .errors import ForkedError, LoaderError

if TYPE_CHECKING:
    from .connection import Connection, Job


class ServedRing:
    """A stream whose batches another program takes from named shared memory; `Loader.serve_ring` opens it.

    This process keeps it open and takes none of its batches: exactly one other process does, in plan order, epoch after
    epoch, at its own pace. It finds the segments ``name + ".control"`` and ``name + ".slots"`` by ``shm_open``, and in the
    first everything that it has to know. The bytes are described in ``loader/RINGS.md``, beside a reader in C.

    The segments are for this user alone (mode 0600). Their names are gone when this is closed, or when this process or the
    sidecar ends; what a sidecar that is killed leaves behind, the next one takes away.

    Use it as a context manager, or call `close`.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection: Connection | None = connection
        try:
            for field in connection.info["layout"]["fields"]:
                if field["form"] != "fixed":
                    raise ValueError(
                        f"field {field['name']!r} has rows of any size, and those for which a slot has no room reach only "
                        "who has the socket: serve fields whose rows have one size (an image, a number, an array of fixed shape)"
                    )
            connection.native.settle(timeout_s)
        except BaseException:
            self.close()
            raise
        #: The ring's name, with a leading slash, as ``shm_open`` takes it once the part is appended.
        self.name: str = connection.info["ring_name"]

    @staticmethod
    def check_job(job: Job) -> None:
        """Refuses what no other program could read."""
        if job.spec["ring"] != "named":
            raise ValueError("serve_ring() needs a ring with a name: make the loader with ring=\"named\"")
        if job.device is not None:
            raise ValueError(f"serve_ring() gives out host memory, and device={job.device!r} asks for another: leave device= out")

    @property
    def info(self) -> dict[str, Any]:
        """What the sidecar says of the stream: ``batches_per_epoch``, ``sample_count``, ``layout`` and more."""
        return self._open().info

    def check(self) -> None:
        """Raises what has happened to the stream or the sidecar, if anything: call it now and then.

        Raises:
            SidecarExitError: The sidecar is gone.
            LoaderError: The stream has ended; the reader sees that too, without the words.
        """
        self._open().native.check_alive()

    def close(self) -> None:
        """Ends the stream; the reader keeps what it has mapped."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.generation == forks.generation:
            connection.close()

    def _open(self) -> Connection:
        if self._connection is None:
            raise LoaderError("this ring is closed: serve_ring() opens another")
        if self._connection.generation != forks.generation:
            raise ForkedError("this ring belongs to the parent process: call serve_ring() in the child")
        return self._connection

    def __enter__(self) -> ServedRing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        return f"ServedRing({self.name!r}{', closed' if self._connection is None else ''})"
