"""Datasets that are mixed by weight."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Literal

from . import arguments

#: What a part of a mix may be: a path or pattern, or a list of them.
Shards = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Mix:
    """Several datasets as one, each with a share of an epoch's positions; given to `Loader` in place of shards.

    Shares are kept, not drawn: the positions of an epoch come in strata of 64, each of which has every part as often as
    its share says, to whole numbers, in an order of its own. The differences never add up: over any stretch of strata,
    and over an epoch, a part is off its share by at most one position for two parts, log2(n) for n of them.

    Each part goes through its own samples pass after pass, every pass in another order: no sample comes again before all
    others of its part came. Passes go on over the ends of epochs, so of a large part with a small share each epoch takes
    other samples. With ``shuffle=False`` every epoch is the same: each part from its first sample on.

    Which sample is where depends on the seed, the position and the parts alone, so that resuming costs a seek. Ranks,
    tails, ``set_epoch`` and ``quarantine=`` are as without a mix; ``order="block"``, ``indices=`` and ``weights=`` belong
    to one dataset and are refused. Samples may have fields of other names in each part: list them all in the field, as in
    ``Image(["jpg", "png"], ...)``.

    Args:
        parts: Pairs of shards, as `Loader` takes them, and a weight. Weights are relative: 7 and 3 are 0.7 and 0.3.
        length: Positions of an epoch, over all ranks.
        stop: Where an epoch ends that has no ``length``: ``"first"`` when the first part has been gone through, so that
            an epoch repeats a sample only where two passes of its part meet within the epoch; ``"all"`` when every part
            has been, at least once, so that smaller ones repeat. The shares and passes are told when the stream opens.
    """

    def __init__(
        self,
        parts: Iterable[tuple[Shards, float]],
        length: int | None = None,
        stop: Literal["first", "all"] = "first",
    ) -> None:
        listed = list(parts)
        if not listed or not all(isinstance(part, tuple | list) and len(part) == 2 for part in listed):
            raise TypeError(
                "a Mix is made of pairs of shards and weight, as in Mix([(\"a-{000..009}.tar\", 0.7), (\"b.tar\", 0.3)]), "
                f"got {parts!r}"
            )
        self.parts = [(arguments.shard_patterns(shards), _weight(number, weight)) for number, (shards, weight) in enumerate(listed)]
        self.length = None if length is None else arguments.int_at_least("length", length, 1)
        self.stop = arguments.one_of("stop", stop, ("first", "all"))
        if length is not None and stop != "first":
            raise ValueError(f"length={length} and stop={stop!r} both say where an epoch ends: leave one out")

    def __repr__(self) -> str:
        parts = ", ".join(f"({patterns[0] if len(patterns) == 1 else patterns!r}, {weight:g})" for patterns, weight in self.parts)
        return f"Mix({parts})"


def _weight(number: int, weight: object) -> float:
    if isinstance(weight, bool) or not hasattr(weight, "__float__"):
        raise TypeError(f"part {number} of the Mix: a weight is a number, got {weight!r}")
    value = float(weight)
    if not 0 < value < math.inf:
        raise ValueError(f"part {number} of the Mix: a weight is finite and above 0, got {weight!r}; leave out unwanted parts")
    return value
