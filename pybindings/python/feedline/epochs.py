"""Which epoch an iteration delivers, and from where: bookkeeping without any input or output."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import trace
from .trace import Lanes


@dataclass
class Account:
    """What was consumed, as a trace.

    Attributes:
        total: The sum; None where it is not known, as a state was another rank's.
    """

    total: Lanes | None = trace.EMPTY

    def add(self, lanes: Lanes) -> None:
        """Adds what was consumed."""
        if self.total is not None:
            self.total = trace.plus(self.total, lanes)


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
        has_failed: Whether an error ended it.
        first: The trace of a first batch that does not count as long as it is the only one.
        account: Where what counts is added.
    """

    epoch: int
    start: int
    position: int
    batches: int = 0
    is_complete: bool = False
    is_live: bool = True
    has_failed: bool = False
    first: Lanes = trace.EMPTY
    account: Account = field(default_factory=Account)

    @property
    def counts(self) -> bool:
        """Whether it was more than a look at the first batch, which a batch before an error is, too."""
        return self.is_complete or self.batches > 1 or (self.has_failed and self.batches > 0)

    def fail(self) -> None:
        """Notes that an error has ended it: what was taken before was trained on."""
        self.has_failed = True
        self.account.add(self.first)
        self.first = trace.EMPTY

    def take(self, end_position: int, is_complete: bool, lanes: Lanes) -> None:
        """Notes a batch that the trainer has: where it ends, whether it is the epoch's last, and its trace."""
        self.batches += 1
        self.position, self.is_complete = end_position, is_complete
        if self.batches == 1 and not is_complete:
            self.first = lanes
            return
        if self.first is not trace.EMPTY:
            self.account.add(self.first)
            self.first = trace.EMPTY
        self.account.add(lanes)


class Epochs:
    """Numbers a loader's iterations.

    The number advances when an epoch is exhausted, or when a new iteration follows one that was left after more than
    its first batch: a look at the first batch is no epoch. `set_epoch` and `restore` override.
    """

    def __init__(self) -> None:
        self._next: tuple[int, int] | None = (0, 0)
        self._last: Run | None = None
        self._account = Account()
        self._counted = 0

    @property
    def count(self) -> int:
        """Iterations so far that count as epochs, or as the rest of one."""
        return self._counted + (self._last is not None and self._last.counts)

    def upcoming(self) -> tuple[int, int]:
        """(epoch, global position) at which the next iteration starts."""
        if self._next is not None:
            return self._next
        last = self._last
        assert last is not None, "without an override there was an iteration"
        if last.counts:
            return last.epoch + 1, 0
        return last.epoch, last.start

    def begin(self) -> Run:
        """Starts an iteration."""
        epoch, position = self.upcoming()
        self._counted = self.count
        self._next = None
        self._last = Run(epoch, position, position, account=self._account)
        return self._last

    def set_epoch(self, epoch: int) -> None:
        """The next iteration delivers `epoch`: where a restored position is for that epoch, from there on."""
        if self._next is None or self._next[0] != epoch:
            self._next = (epoch, 0)

    def restore(self, epoch: int, position: int, consumed: Lanes | None) -> None:
        """The next iteration delivers `epoch` from global `position` on; `consumed` is the trace of what came before."""
        self._next = (epoch, position)
        # An iteration that still goes on is no part of what follows.
        self._account = Account(consumed)

    def count_from(self, consumed: Lanes | None) -> None:
        """`consumed` is the trace of what was consumed before the next iteration."""
        self._account = Account(consumed)

    def counted(self) -> Lanes | None:
        """The trace of what `upcoming` comes after."""
        return self._account.total

    def trace(self) -> Lanes | None:
        """The trace of what `state` accounts for; None where it is not known."""
        total, last = self._account.total, self._last
        if total is None or last is None or last.account is not self._account or not last.is_live:
            return total
        return trace.plus(total, last.first)

    def state(self) -> tuple[int, int]:
        """(epoch, global position) after what was consumed: where a resumed run goes on."""
        last = self._last
        if self._next is not None or last is None:
            return self.upcoming()
        if last.is_complete and not last.is_live:
            return last.epoch + 1, 0
        if last.is_live or last.counts:
            return last.epoch, last.position
        return last.epoch, last.start
