"""What the loader's arguments mean: `torch.utils.data.DataLoader`'s names, mapped or refused with the way out."""

from __future__ import annotations

import logging
import math
import numbers
import os
import re
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

#: Most rows of a batch.
BATCH_SIZE_MAX = 1 << 20

#: Most decode threads.
WORKERS_MAX = 4096

#: Least and largest weight of a job.
PRIORITY_MIN, PRIORITY_MAX = 0.01, 100.0

#: Largest seed, epoch and position.
NUMBER_MAX = 2**64 - 1

#: A number of bytes in words; units are powers of 1024.
_BYTES = re.compile(r"[0-9]+(\s*b)?|[0-9]+(\.[0-9]+)?\s*[kmgt](i?b)?", re.ASCII | re.IGNORECASE)

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
    for pattern in patterns:
        if not _is_utf8(pattern):
            raise ValueError(f"{pattern!r} is not UTF-8, as the paths of shards must be: rename it, or link to it")
    return patterns


def label_table(labels: Any) -> dict[str, str | None] | None:
    """The table of labels, by its path or by (path, name of the key's column)."""
    if labels is None:
        return None
    path, key = labels if isinstance(labels, tuple) and len(labels) == 2 else (labels, None)
    if not isinstance(path, str | os.PathLike) or not isinstance(key, str | None):
        raise TypeError(f"labels must be a path, or (path, name of the column with the keys), got {labels!r}")
    absolute = os.path.abspath(os.fspath(path))
    if not os.path.isfile(absolute):
        raise FileNotFoundError(f"labels={path!r}: there is no such file")
    return {"path": absolute, "key": key}


def _is_utf8(text: str) -> bool:
    # Python spells bytes of a file name that are no UTF-8 as lone surrogates.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def order_rule(order: object, block_shards: object, shuffle: object, is_drawn: bool) -> Any:
    """The order in the job spec's words, by `order` and `block_shards` or by DataLoader's `shuffle`."""
    if order is None:
        if block_shards is not None:
            raise ValueError(f"block_shards={block_shards!r} belongs to order=\"block\": add that, or leave it out")
        return "global" if shuffle or is_drawn else "sequential"
    one_of("order", order, ("global", "block", "sequential"))
    if is_drawn:
        raise ValueError(f"weights= draws at random from the whole dataset: leave order={order!r} out")
    if shuffle is not None and bool(shuffle) == (order == "sequential"):
        raise ValueError(f"shuffle={shuffle!r} contradicts order={order!r}: leave shuffle= out")
    if order != "block":
        if block_shards is not None:
            raise ValueError(f"block_shards={block_shards!r} belongs to order=\"block\", not to order={order!r}: leave it out")
        return order
    return {"block": {"block_shards": None if block_shards is None else int_at_least("block_shards", block_shards, 1)}}


def quarantine_paths(quarantine: object) -> list[str]:
    """`quarantine` as absolute paths."""
    listed = [quarantine] if isinstance(quarantine, str | os.PathLike) else quarantine
    if not isinstance(listed, Iterable) or isinstance(listed, bytes):
        raise TypeError(f"quarantine must be a path or a list of them, got {quarantine!r}")
    paths = list(listed)
    if not paths or not all(isinstance(path, str | os.PathLike) and os.fspath(path) for path in paths):
        raise TypeError(f"quarantine must be a path or a list of them, got {quarantine!r}")
    return [os.path.abspath(path) for path in paths]


def worker_count(workers: object, num_workers: object) -> int | None:
    """Decode threads of a private sidecar; None for its own choice, which 0, DataLoader's default, means too."""
    given = {int_within(name, value, 0, WORKERS_MAX) for name, value in (("workers", workers), ("num_workers", num_workers))
             if value is not None}  # fmt: skip
    if len(given) > 1:
        raise ValueError(f"workers={workers!r} and num_workers={num_workers!r} say the same thing: leave one out")
    return (given.pop() or None) if given else None


def memory_options(memory: object, cache: object) -> tuple[str, ...]:
    """The options of `feedline serve` for a private sidecar's memory budget and its cache of encoded samples."""
    options: list[str] = []
    for name, size in (("memory", memory), ("cache", cache)):
        if size is None:
            continue
        if isinstance(size, bool) or not isinstance(size, int | str):
            raise TypeError(f"{name} must be a number of bytes or text such as \"8G\", got {size!r}")
        text = str(size).strip()
        if not _BYTES.fullmatch(text):
            raise ValueError(f"{name} must be a number of bytes or text such as \"512M\" or \"8G\", got {size!r}")
        options += [f"--{name}", text]
    return tuple(options)


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
        if not hasattr(generator, "initial_seed"):
            raise TypeError(f"generator must be a torch.Generator, whose seed is taken, got {generator!r}")
        drawn = int(generator.initial_seed()) & (2**64 - 1)
        if seed is not None and seed != drawn:
            raise ValueError(f"seed={seed!r} and a generator seeded with {drawn} contradict each other: leave one out")
        return drawn
    return 0 if seed is None else int_within("seed", seed, 0, NUMBER_MAX)


def sample_numbers(indices: Any) -> array[int] | None:
    """`indices` as uint64."""
    if indices is None:
        return None
    if hasattr(indices, "__array__"):
        import numpy

        row = numpy.asarray(indices)
        if row.dtype == bool:
            raise TypeError("indices must be sample numbers, got a mask: pass numpy.flatnonzero(mask)")
        if row.ndim != 1 or not numpy.issubdtype(row.dtype, numpy.integer):
            raise TypeError(f"indices must be one row of integers, got {row.dtype} of shape {row.shape}")
        indices = row.tolist()
    _refuse_text("indices", indices)
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
    _refuse_text("weights", weights)
    try:
        listed = array("d", weights)
    except TypeError as error:
        raise TypeError(f"weights must be one number a sample: {error}") from None
    if not listed or not all(0 <= weight < float("inf") for weight in listed) or not sum(listed):
        raise ValueError("weights must be one finite number of at least 0 a sample, and not all 0")
    if sum(listed) == math.inf:
        raise ValueError("the weights add up to more than a float64 holds: only their ratio counts, so divide them all")
    return listed


def _refuse_text(name: str, value: object) -> None:
    # The array type would take the bytes of a bytes object for its memory.
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"{name} must be a sequence of numbers, got {type(value).__name__}")


def share(name: str, value: object) -> float:
    """`value`, which must be a number from 0 to 1."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} is a share, 0 to 1, got {value!r}")
    return number


def job_priority(priority: object) -> float:
    """The weight of a job among those of its sidecar."""
    if not isinstance(priority, numbers.Real) or isinstance(priority, bool):
        raise TypeError(f"priority must be a number, got {priority!r}")
    if not PRIORITY_MIN <= float(priority) <= PRIORITY_MAX:
        raise ValueError(f"priority must be {PRIORITY_MIN} to {PRIORITY_MAX}, got {priority!r}")
    return float(priority)


def job_name(name: object, fallback: str) -> str:
    """The name of a job, which logs and metrics show."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    # Lone surrogates have no place in JSON.
    return (name or fallback).encode(errors="replace").decode()


def socket_path(sidecar: object) -> str | None:
    """The absolute path of the socket of a running sidecar; None where none is named."""
    if sidecar is None:
        return None
    if not isinstance(sidecar, str | os.PathLike):
        raise TypeError(f"sidecar must be the path of a socket, as given to `feedline serve --socket`, got {sidecar!r}")
    path = os.fsdecode(sidecar)
    if not path or "\0" in path:
        raise ValueError(f"sidecar must be the path of a socket, got {path!r}; leave it out to have a private one started")
    return os.path.abspath(path)


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


def dropped_fields(missing: object, fields: Mapping[str, Any]) -> list[str]:
    """Names of the fields without which samples are left out."""
    words = ("fault", "drop")
    has_default = {name for name, field in fields.items() if field.default_bytes() is not None}
    if isinstance(missing, str):
        drops = one_of("missing", missing, words) == "drop"
        return [name for name in fields if drops and name not in has_default]
    if not isinstance(missing, Mapping):
        raise TypeError(f"missing must be 'fault', 'drop', or one of them for each name of a field, got {missing!r}")
    for name, word in missing.items():
        if name not in fields:
            raise ValueError(f"missing= names {name!r}, which is no field; the fields are {', '.join(fields)}")
        if one_of(f"missing[{name!r}]", word, words) == "drop" and name in has_default:
            raise ValueError(f"field {name!r} has a default, so no sample lacks it: leave default= or missing= out")
    return [name for name in fields if missing.get(name) == "drop"]


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


def int_within(name: str, value: object, least: int, most: int) -> int:
    """`value` as an int from `least` to `most`."""
    number = int_at_least(name, value, least)
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def state_numbers(state: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[int, int]:
    """(epoch, position) of a state that `Loader.state_dict` gave, for a loader of job `spec`."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is the dict that Loader.state_dict gave, got {state!r}")
    version = state.get("version")
    if version != 1:
        raise ValueError(f"this state has version {version!r}, this Feedline reads 1: resume with the Feedline that wrote it")
    missing = [name for name in ("epoch", "position", "seed") if name not in state]
    if missing:
        raise ValueError(f"this state lacks {', '.join(missing)}: give load_state_dict what state_dict gave")
    seed = spec["seed"]
    if state["seed"] != seed:
        raise ValueError(
            f"this state belongs to seed {state['seed']}, the loader has seed {seed}, whose order is another: make the "
            f"loader with seed={state['seed']}"
        )
    if state.get("order", spec["order"]) != spec["order"]:
        raise ValueError(
            f"this state belongs to order {state['order']!r}, the loader has {spec['order']!r}: make the loader with the "
            "same shuffle=, order= and block_shards="
        )
    if state.get("mix", spec["mix"]) != spec["mix"]:
        raise ValueError(
            f"this state belongs to mix {state['mix']}, the loader has {spec['mix']}, so the same position is another sample: "
            "make the loader with the same Mix"
        )
    if state.get("quarantine") != spec["quarantine"]:
        raise ValueError(
            f"this state belongs to quarantine {state.get('quarantine')}, the loader has {spec['quarantine']}, so the same "
            "position is another sample: resume with the list that the run began with (None is no list)"
        )
    if state.get("drop_missing", []) != spec["drop_missing"]:
        raise ValueError(
            f"this state belongs to a loader that drops samples without {state.get('drop_missing')}, this one drops those "
            f"without {spec['drop_missing']}, so the same position is another sample: make the loader with the same missing="
        )
    epoch, position = (int_within(name, state[name], 0, NUMBER_MAX) for name in ("epoch", "position"))
    return epoch, position
