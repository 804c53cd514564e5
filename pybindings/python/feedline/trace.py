"""What proves which samples a run consumed, and what was done to them.

Each row has a keyed hash over seed, epoch, global position, sample (number and key) and the parameters that were drawn for
it; a trace is the sum of the hashes of the rows consumed. A sum does not depend on the order of its parts: the traces of all
ranks, merged, are the same for any number of decode threads, any world size, and any interruption. The repeats that fill
batches under ``tail="pad"`` are left out; so is what blends whole batches (`MixUp`, `CutMix`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: A trace in two lanes of 64 bits, each a sum of its own.
Lanes = tuple[int, int]

EMPTY: Lanes = (0, 0)

#: What a state has before anything was consumed: no rank's in particular.
NOTHING: Mapping[str, Any] = {"hash": "0" * 32, "rank": None, "world_size": None}

_LANE = (1 << 64) - 1


def plus(left: Lanes, right: Lanes) -> Lanes:
    """The sum of both."""
    return (left[0] + right[0]) & _LANE, (left[1] + right[1]) & _LANE


def to_text(lanes: Lanes) -> str:
    """32 hexadecimal digits."""
    return f"{lanes[0]:016x}{lanes[1]:016x}"


def from_text(text: object) -> Lanes:
    """What `to_text` gave."""
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{32}", text):
        raise ValueError(f"a trace hash is 32 hexadecimal digits, as Loader.trace_hash gives it; got {text!r}")
    return int(text[:16], 16), int(text[16:], 16)


def merge_trace(hashes: Iterable[str]) -> str:
    """The trace hash of a whole run from those of its ranks (or of its parts).

    Args:
        hashes: `Loader.trace_hash` of every rank, in any order; each once.

    Returns:
        32 hexadecimal digits, the same for any world size, number of decode threads and interruption.
    """
    if isinstance(hashes, str):
        raise TypeError("merge_trace takes the hashes of all ranks as a list, got one string")
    total = EMPTY
    for text in hashes:
        total = plus(total, from_text(text))
    return to_text(total)


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of the states of all ranks, which every rank of a run with another world size can load.

    A position is global, so the state of any rank resumes all of them; but each has the trace of its own rank only. The merged
    one has the whole run's: rank 0 goes on with that, the others start at nothing.

    Args:
        states: `Loader.state_dict` of every rank, taken at the same step; each once, in any order.

    Raises:
        ValueError: They differ in more than the trace, or a rank is missing or there twice.
    """
    parts = [dict(state) for state in states]
    if not parts:
        raise ValueError("merge_states takes the states of all ranks, got none")
    traces = [state.pop("trace", None) for state in parts]
    for number, state in enumerate(parts):
        for name in sorted(set(state) | set(parts[0])):
            if state.get(name) != parts[0].get(name):
                raise ValueError(
                    f"the states differ in {name!r}: {parts[0].get(name)!r} in the first, {state.get(name)!r} in number "
                    f"{number}: take all at the same step of the same run"
                )
    if all(trace == NOTHING for trace in traces):
        return {**parts[0], "trace": dict(NOTHING)}
    world_size = len(parts)
    ranks = [None if trace is None else (trace["rank"], trace["world_size"]) for trace in traces]
    if sorted(ranks, key=str) != sorted(((rank, world_size) for rank in range(world_size)), key=str):
        raise ValueError(
            f"merge_states takes the state of each rank once; these {world_size} are of (rank, world size) "
            f"{', '.join(map(str, ranks))}"
        )
    merged = merge_trace(trace["hash"] for trace in traces if trace is not None)
    return {**parts[0], "trace": {"hash": merged, "rank": None, "world_size": None}}


def saved(lanes: Lanes, rank: int, world_size: int) -> Mapping[str, Any]:
    """What a state has of the trace of a rank."""
    return {"hash": to_text(lanes), "rank": rank, "world_size": world_size}


def for_rank(found: Mapping[str, Any] | None, rank: int, world_size: int) -> Lanes | None:
    """What rank `rank` goes on with of the trace in a state; None where that state has another rank's."""
    if found is None:
        return None
    owner = found["rank"], found["world_size"]
    if owner == (None, None):
        return from_text(found["hash"]) if rank == 0 else EMPTY
    return from_text(found["hash"]) if owner == (rank, world_size) else None


def check_saved(found: object) -> Mapping[str, Any] | None:
    """The trace of a state, if it is one."""
    if found is None:
        return None
    if not isinstance(found, Mapping) or set(found) != {"hash", "rank", "world_size"}:
        raise ValueError(f"the state's trace is a dict of hash, rank and world_size, as state_dict gave it; got {found!r}")
    from_text(found["hash"])
    return found
