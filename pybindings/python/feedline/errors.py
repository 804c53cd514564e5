"""What can go wrong, parted by what the caller can do about it.

A wrong argument is a ``ValueError`` or ``TypeError``, a file that the system refuses an ``OSError``. The rest is here.
"""

from __future__ import annotations


class LoaderError(RuntimeError):
    """Base of every error of Feedline that no built-in exception names."""


class StallError(LoaderError):
    """No progress within the time-out, though the sidecar lives: wait longer, or look at what the message blames."""


class SidecarExitError(LoaderError):
    """The sidecar is gone. A new iteration starts a private one again; resume there with ``load_state_dict``.

    Attributes:
        epoch: The epoch that was being delivered, or None where no batch was asked for yet.
        position: Global samples of that epoch that were handed over.
    """

    epoch: int | None = None
    position: int | None = None


class SampleError(LoaderError):
    """A sample cannot be used, and ``on_error="raise"`` says to stop; the message has shard, key and offset."""


class BudgetError(LoaderError):
    """More samples were bad than ``error_budget`` allows; the message has the table of reasons."""


class ShardError(LoaderError):
    """A shard's structure is damaged; the message has path and offset."""


class ProtocolError(LoaderError):
    """The other end of the socket is no sidecar of this version: install the same Feedline on both sides."""


class ResourceError(LoaderError, MemoryError):
    """The machine or a limit cannot hold what was asked; the message has the sum and the ways out."""


class SlotsHeldError(LoaderError):
    """Live batches hold all slots but two, and ``zero_copy="strict"`` forbids a private copy."""


class GraphCaptureError(LoaderError):
    """A batch was asked for while a CUDA graph is being captured."""


class ForkedError(LoaderError):
    """A batch of the parent was used in a forked child, where its memory is not mapped."""
