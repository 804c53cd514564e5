"""How long a GPU stood idle for want of a batch, by its own clock, and why.

Loader wait, which the stream measures, is time that `next()` is blocked. Python runs ahead of the GPU, so a wait may cost the
GPU nothing. Here a request that finds no batch on the device leaves an event on the user's stream; the GPU starves from
that event to the end of the batch's copy. Events are looked at later, and never waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

#: Why a GPU starves: the sidecar's causes of a wait, a wait too short for its sampler, the copy and what is done to it.
CAUSES = ("storage", "decode", "slots", "start", "unsampled", "copy")


class Request(NamedTuple):
    """One request that found no batch on the device. All events are timed.

    Attributes:
        needed: Recorded on the user's stream at the request.
        began: Recorded on the copy stream before the batch's copy.
        done: Recorded on the copy stream after it, and after what ``output`` does there.
        was_ready: Whether the batch lay in the ring, so that only the copy was waited for.
    """

    needed: Any
    began: Any
    done: Any
    was_ready: bool


class Starvation:
    """Starved time since the last report."""

    def __init__(self) -> None:
        self._pending: deque[Request] = deque()
        self._waited_s = 0.0
        self._copied_s = 0.0

    def note(self, request: Request) -> None:
        """Takes up a request, and whatever the device has got to meanwhile."""
        self._pending.append(request)
        self._settle()

    def restart(self) -> None:
        """Counts from zero. What is not measured yet is counted when it is."""
        self._waited_s = self._copied_s = 0.0

    def report(self, waiting_s: Mapping[str, float]) -> dict[str, Any]:
        """Starved seconds since the last report, in all and by cause; counts from zero again.

        Args:
            waiting_s: What the sidecar says that the same time's waits were for, in seconds by cause.
        Returns:
            ``gpu_starved_s``; ``gpu_starved_by_cause``, of `CAUSES`; ``gpu_starved_pending``, requests that the device has
            not got to, which the next report has.
        """
        self._settle()
        by_cause = dict.fromkeys(CAUSES, 0.0)
        known = sum(waiting_s.values())
        if known > 0:
            for cause, seconds in waiting_s.items():
                by_cause[cause] = self._waited_s * seconds / known
        else:
            by_cause["unsampled"] = self._waited_s
        by_cause["copy"] = self._copied_s
        total = self._waited_s + self._copied_s
        self.restart()
        return {"gpu_starved_s": total, "gpu_starved_by_cause": by_cause, "gpu_starved_pending": len(self._pending)}

    def _settle(self) -> None:
        pending = self._pending
        while pending and pending[0].needed.query() and pending[0].done.query():
            request = pending.popleft()
            starved_s = request.needed.elapsed_time(request.done) / 1000
            if starved_s <= 0:
                # The batch was there before the device had done what was queued.
                continue
            copied_s = starved_s if request.was_ready else min(starved_s, request.began.elapsed_time(request.done) / 1000)
            self._copied_s += copied_s
            self._waited_s += starved_s - copied_s


def words(summary: Mapping[str, Any]) -> str:
    """The starved time of a summary that has one, for a person."""
    causes = ", ".join(f"{cause} {seconds:.1f}" for cause, seconds in summary["gpu_starved_by_cause"].items() if seconds >= 0.05)
    return f"GPU starved {summary['gpu_starved_s']:.1f} s{f' ({causes})' if causes else ''}"
