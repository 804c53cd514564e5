"""One iteration over one epoch, as Python's ``for`` sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import forks, sidecar
from .connection import Connection, Tally
from .epochs import Run
from .errors import ForkedError, LoaderError, SidecarExitError

if TYPE_CHECKING:
    from .loader import Loader

logger = logging.getLogger("feedline")


class BatchIterator(Iterator[Any]):
    """One iteration over one epoch of a `Loader`."""

    def __init__(self, loader: Loader, connection: Connection, run: Run) -> None:
        self._loader = loader
        self._connection: Connection | None = connection
        self._take = connection.take
        self._last_position = connection.last_position
        self._is_plain = loader.collate_fn is None
        self._run = run
        self._tally = Tally()
        self._has_failed = False

    def __next__(self) -> Any:
        """The next batch, in plan order.

        Returns:
            A `Batch`, or what ``collate_fn`` makes of it.
        Raises:
            StopIteration: The epoch is over.
            StallError: No progress within the time-out; the next call waits again.
            SidecarExitError: The sidecar is gone; ``epoch`` and ``position`` say where to resume.
            SampleError: A bad sample under ``on_error="raise"``; the next call goes on after its batch.
            BudgetError: Too many bad samples.
            SlotsHeldError: ``zero_copy="strict"`` and too many live batches; the next call delivers this batch.
        """
        if self._connection is None:
            raise StopIteration
        try:
            taken = self._take()
        except BaseException as error:
            self._has_failed = True
            self._run.fail()
            self._check_process()
            if isinstance(error, SidecarExitError):
                sidecar.explain(error, self._connection.socket)
            raise
        if taken is None:
            self._finish()
            raise StopIteration
        batch, info = taken
        self._run.take(info.end_position, info.end_position > self._last_position, info.trace)
        if self._is_plain and not info.is_overflow and not info.fault_count:
            return batch
        return self._loader._deliver(batch, info, self._tally)

    def _check_process(self) -> None:
        connection = self._connection
        if connection is not None and connection.generation != forks.generation:
            raise ForkedError("this iteration belongs to the parent process: start a new one over the loader in the child")

    def _finish(self) -> None:
        self._run.is_complete = True
        connection = self._connection
        if connection is not None and logger.isEnabledFor(logging.INFO):
            try:
                summary = connection.summary()
            except LoaderError as error:
                # The epoch has been delivered all the same; what ended the stream concerns the next.
                self._has_failed = True
                logger.info("epoch %d is complete; its stream has ended since: %s", self._run.epoch, error)
            else:
                logger.info("%s", self._tally.words(self._run.epoch, summary))
        self._leave()

    def _leave(self) -> None:
        self._run.is_live = False
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._has_failed:
            connection.close()
        else:
            self._loader._put_back(connection)

    def __del__(self) -> None:
        # An iteration that was left early; __init__ may not have got to the connection.
        if getattr(self, "_connection", None) is not None:
            self._leave()
