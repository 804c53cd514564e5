"""What the loader's arguments mean: `torch.utils.data.DataLoader`'s names, mapped or refused with the way out."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

logger = logging.getLogger("feedline")

#: Longest wait without any progress, in seconds, where the user does not say.
TIMEOUT_S = 600.0

#: Slots of the ring, where the user does not say: a few batches ahead, and a few for the trainer to hold.
SLOTS = 8

#: Fewest and most slots of a ring.
SLOTS_MIN, SLOTS_MAX = 4, 64

Tail = Literal["short", "drop", "pad"]

#: Conventions for the keys and values of an LMDB database.
PROFILES = (
    "auto",
    "plain",
    "text-recognition",
    "super-resolution",
    "datum",
    "lsun",
    "folder",
    "length-keys",
    "open-catalyst",
)


def shard_patterns(shards: object) -> list[str]:
    """The shards as a list of paths and patterns."""
    if isinstance(shards, str | os.PathLike):
        listed: list[Any] = [shards]
    elif isinstance(shards, Iterable):
        listed = list(shards)
    else:
        listed = []
    if not listed or not all(isinstance(shard, str | os.PathLike) for shard in listed):
        raise TypeError(
            "shards must be a path or pattern, or a list of them, as in \"shards/train-{000000..000003}.tar\", got "
            f"{shards!r}; a Dataset object cannot be served: write it as shards with `feedline convert`"
        )
    patterns = [os.fspath(shard) for shard in listed]
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise TypeError(f"shards must be non-empty strings or paths, got {shards!r}")
    return patterns


def refuse_samplers(sampler: object, batch_sampler: object) -> None:
    """DataLoader's samplers pick samples in the trainer; here the plan does."""
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is None:
            continue
        ways = (
            "ranks are found by themselves, or pass rank= and world_size="
            if "Distributed" in type(value).__name__
            else "use shuffle= for an order, indices= for a subset, weights= for weighted drawing with replacement"
        )
        raise ValueError(f"{name}={type(value).__name__} cannot run inside the sidecar: {ways}")


def ignore_with_notice(worker_init_fn: object, multiprocessing_context: object) -> None:
    """Arguments about DataLoader's worker processes, of which there are none."""
    if worker_init_fn is not None:
        logger.info("worker_init_fn is not called: there are no Python workers, and seed= keys all randomness")
    if multiprocessing_context is not None:
        logger.info("multiprocessing_context has no effect: there are no Python workers")


def tail_rule(tail: str | None, drop_last: bool | None) -> Tail:
    """The tail by `tail`, or by DataLoader's `drop_last`."""
    by_drop_last: Tail = "drop" if drop_last else "short"
    if tail is None:
        return by_drop_last
    if tail not in ("short", "drop", "pad"):
        raise ValueError(f"tail must be \"short\", \"drop\" or \"pad\", got {tail!r}")
    if drop_last and tail != "drop":
        raise ValueError(f"drop_last=True means tail=\"drop\", but tail={tail!r} is given too: leave one out")
    return tail  # type: ignore[return-value]


def worker_count(workers: object, num_workers: object) -> int | None:
    """Decode threads of a private sidecar; None for its own choice, which 0, DataLoader's default, means too."""
    given = {int_at_least(name, value, 0) for name, value in (("workers", workers), ("num_workers", num_workers))
             if value is not None}  # fmt: skip
    if len(given) > 1:
        raise ValueError(f"workers={workers!r} and num_workers={num_workers!r} say the same thing: leave one out")
    return (given.pop() or None) if given else None


def slot_count(slots: object, prefetch_factor: object) -> int:
    """Slots of the ring, by `slots` or by DataLoader's `prefetch_factor`: batches ahead, and two that are held."""
    if slots is not None and prefetch_factor is not None:
        raise ValueError("slots= and prefetch_factor= both size the ring: leave one out")
    if prefetch_factor is not None:
        return min(max(int_at_least("prefetch_factor", prefetch_factor, 1) + 2, SLOTS_MIN), SLOTS_MAX)
    count = SLOTS if slots is None else int_at_least("slots", slots, 1)
    if not SLOTS_MIN <= count <= SLOTS_MAX:
        raise ValueError(f"slots must be {SLOTS_MIN} to {SLOTS_MAX}, got {count}: the trainer may hold all but two")
    return count


def timeout_seconds(timeout: object) -> float:
    """Longest wait without progress; DataLoader's default 0 and None mean `TIMEOUT_S`, infinity means no limit."""
    if timeout is None:
        return TIMEOUT_S
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise ValueError(f"timeout must be seconds, 0 or more (0 means {TIMEOUT_S:.0f}), got {timeout!r}")
    return float(timeout) or TIMEOUT_S


def seed_number(seed: object, generator: Any) -> int:
    """The seed by `seed`, or by DataLoader's `generator`; 0 where neither is given."""
    if generator is not None:
        drawn = int(generator.initial_seed()) & (2**64 - 1)
        if seed is not None and seed != drawn:
            raise ValueError(f"seed={seed!r} and a generator seeded with {drawn} contradict each other: leave one out")
        return drawn
    number = 0 if seed is None else int_at_least("seed", seed, 0)
    if number >= 2**64:
        raise ValueError(f"seed must be below 2**64, got {number}")
    return number


def sample_numbers(indices: Any) -> array[int] | None:
    """`indices` as uint64."""
    if indices is None:
        return None
    if hasattr(indices, "__array__"):
        import numpy

        numbers = numpy.asarray(indices)
        if numbers.dtype == bool:
            raise TypeError("indices must be sample numbers, got a mask: pass numpy.flatnonzero(mask)")
        if numbers.ndim != 1 or not numpy.issubdtype(numbers.dtype, numpy.integer):
            raise TypeError(f"indices must be one row of integers, got {numbers.dtype} of shape {numbers.shape}")
        indices = numbers.tolist()
    try:
        listed = array("Q", indices)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"indices must be sample numbers, 0 or more: {error}") from None
    if not listed:
        raise ValueError("indices is empty: an epoch needs at least one sample; leave it out for all of them")
    return listed


def sample_weights(weights: Any) -> array[float] | None:
    """`weights` as float64."""
    if weights is None:
        return None
    if hasattr(weights, "tolist"):
        weights = weights.tolist()
    try:
        listed = array("d", weights)
    except TypeError as error:
        raise TypeError(f"weights must be one number a sample: {error}") from None
    if not listed or not all(0 <= weight < float("inf") for weight in listed) or not sum(listed):
        raise ValueError("weights must be one finite number of at least 0 a sample, and not all 0")
    return listed


def pixel_layout(layout: str) -> str:
    """The order of an image's axes; what a database's values mean is another argument."""
    if layout in PROFILES:
        raise ValueError(f"layout={layout!r} is a profile of a database: pass profile={layout!r}; layout is NHWC or NCHW")
    return str(one_of("layout", layout, ("NHWC", "NCHW")))


def database_rules(profile: str, database: str | None, key_order: str | None) -> dict[str, Any]:
    """How an LMDB database is understood."""
    if database is not None and not isinstance(database, str):
        raise TypeError(f"database must be the name of a database inside the file, got {database!r}")
    order = "auto" if key_order is None else one_of("key_order", key_order, ("natural", "bytes", "meta-file"))
    return {"profile": one_of("profile", profile, PROFILES), "database": database, "key_order": order}


def one_of(name: str, value: Any, allowed: Sequence[str]) -> Any:
    """`value`, which must be one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}, got {value!r}")
    return value


def int_at_least(name: str, value: object, least: int) -> int:
    """`value` as an int of at least `least`; NumPy's integers pass too."""
    try:
        number = value.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return int(number)


def state_numbers(state: Mapping[str, Any], seed: int) -> tuple[int, int]:
    """(epoch, position) of a state that `Loader.state_dict` gave."""
    version = state.get("version")
    if version != 1:
        raise ValueError(f"this state has version {version!r}, this Feedline reads 1: resume with the Feedline that wrote it")
    if state["seed"] != seed:
        raise ValueError(
            f"this state belongs to seed {state['seed']}, the loader has seed {seed}, whose order is another: make the "
            f"loader with seed={state['seed']}"
        )
    return int_at_least("epoch", state["epoch"], 0), int_at_least("position", state["position"], 0)
