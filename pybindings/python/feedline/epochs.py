"""Which epoch an iteration delivers, and from where: bookkeeping without any input or output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Run:
    """One iteration over (the rest of) one epoch.

    Attributes:
        epoch: The epoch's number.
        start: Global samples of it that were left out at its start.
        position: Global samples of it up to the end of the last batch taken.
        batches: How many batches were taken.
        is_complete: Whether every batch was taken.
        is_live: Whether someone still iterates.
    """

    epoch: int
    start: int
    position: int
    batches: int = 0
    is_complete: bool = False
    is_live: bool = True


class Epochs:
    """Numbers a loader's iterations.

    The number advances when an epoch is exhausted, or when a new iteration follows one that was left after more than
    its first batch: a look at the first batch is no epoch. `set_epoch` and `restore` override.
    """

    def __init__(self) -> None:
        self._next: tuple[int, int] | None = (0, 0)
        self._last: Run | None = None

    def upcoming(self) -> tuple[int, int]:
        """(epoch, global position) at which the next iteration starts."""
        if self._next is not None:
            return self._next
        last = self._last
        assert last is not None, "without an override there was an iteration"
        if last.is_complete or last.batches > 1:
            return last.epoch + 1, 0
        return last.epoch, last.start

    def begin(self) -> Run:
        """Starts an iteration."""
        epoch, position = self.upcoming()
        self._next = None
        self._last = Run(epoch, position, position)
        return self._last

    def set_epoch(self, epoch: int) -> None:
        """The next iteration delivers `epoch`: where a restored position is for that epoch, from there on."""
        if self._next is None or self._next[0] != epoch:
            self._next = (epoch, 0)

    def restore(self, epoch: int, position: int) -> None:
        """The next iteration delivers `epoch` from global `position` on."""
        self._next = (epoch, position)

    def state(self) -> tuple[int, int]:
        """(epoch, global position) after what was consumed: where a resumed run goes on."""
        last = self._last
        if self._next is not None or last is None:
            return self.upcoming()
        if last.is_complete and not last.is_live:
            return last.epoch + 1, 0
        if last.is_live or last.batches > 1:
            return last.epoch, last.position
        return last.epoch, last.start
