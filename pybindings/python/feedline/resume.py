"""What a state remembers of the dataset, and what a resumed run makes of a change.

A position is a sample only in the dataset that it was taken in. So a state has the number of positions of an epoch and,
of LMDB databases, which snapshot was read and a hash of its samples' keys.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("feedline")

#: What of a state is about the dataset.
NAMES = ("positions", "databases")


def remembered(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a state has of the dataset of an open stream."""
    databases = [{name: database[name] for name in ("transaction", "root", "keys")} for database in info["databases"]]
    return {"positions": info["epoch_positions"], "databases": databases}


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
