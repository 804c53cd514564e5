"""What a state remembers of the dataset, and what a resumed run makes of a change.

A position is a sample only in the dataset that it was taken in. So a state has the number of positions of an epoch, a hash
of what else says which sample a position is (a subset, weights, a join) and, of LMDB databases, which snapshot was read and a
hash of its samples' keys. Of tars it has no hash of the keys: that the same names hold other samples is not noticed.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

logger = logging.getLogger("feedline")

#: What of a state is about the dataset.
NAMES = ("positions", "databases")


def remembered(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a state has of the dataset of an open stream."""
    databases = [{name: database[name] for name in ("transaction", "root", "keys")} for database in info["databases"]]
    return {"positions": info["epoch_positions"], "databases": databases}


def hash_of_selection(indices: array[int] | None, weights: array[float] | None, join: Mapping[str, Any] | None) -> str | None:
    """A hash of a job's subset, weights and join; None where it has none of them."""
    if indices is None and weights is None and join is None:
        return None
    digest = blake2b(digest_size=16)
    for name, numbers in (("indices", indices), ("weights", weights)):
        if numbers is not None:
            digest.update(f"{name} {len(numbers)} ".encode())
            digest.update(numbers)
    # How many shards a part has says nothing of its samples.
    parts = None if join is None else [(part["name"], part["keys"]) for part in join["parts"]]
    digest.update(json.dumps(parts).encode())
    return digest.hexdigest()


def check_selection(state: Mapping[str, Any], selection: str | None) -> None:
    """Compares the hash of `hash_of_selection` in a state with a loader's; a state of before there was one has none.

    Raises:
        ValueError: They differ.
    """
    if state.get("selection", selection) != selection:
        raise ValueError(
            f"this state belongs to indices, weights or a Join of hash {state['selection']}, the loader's have {selection} (None "
            "is none of them), so the same position is another sample: make the loader with the same ones"
        )


def check(expected: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    """Compares what a state remembers with an open stream.

    Raises:
        ValueError: The same position is another sample now.
    """
    found = remembered(info)
    positions = expected.get("positions", found["positions"])
    then, now = expected.get("databases", found["databases"]), found["databases"]
    if len(then) != len(now):
        raise ValueError(
            f"this state belongs to a dataset with {len(then)} LMDB databases, the loader has {len(now)}: make the loader "
            "with the same shards"
        )
    for before, after, opened in zip(then, now, info["databases"], strict=True):
        changed = f"{opened['path']}: this state was taken of transaction {before['transaction']}, now there is {after['transaction']}"
        if before["keys"] != after["keys"]:
            raise ValueError(
                f"{changed}, with other keys or in another order, so the same position is another sample: resume with the "
                "database of then (a copy by mdb_copy has its keys), or start an epoch anew"
            )
        if before != after:
            logger.warning("%s, with the same keys: the order goes on exactly, but values may have changed", changed)
    if positions != found["positions"]:
        raise ValueError(
            f"this state belongs to an epoch of {positions} positions, the loader has {found['positions']}, so the same "
            "position is another sample: resume with the same shards, fields, indices and lists, or start an epoch anew"
        )
