"""Datasets that are joined by key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from . import arguments
from .mix import Shards

#: Most parts: each is at least one read of its own in every row.
PARTS_MAX = 4

#: What a part is called, as its fields begin with it.
_NAME = re.compile(r"[a-z0-9_-]+")


class Join:
    """Several datasets whose samples of one key become one sample; given to `Loader` in place of shards.

    So pairs for super-resolution come from two LMDB databases, or images from one set of tars and their masks from
    another::

        loader = feedline.Loader(
            feedline.Join({"lq": "DIV2K_LQ.lmdb", "gt": "DIV2K_GT.lmdb"}),
            batch_size=16,
            shuffle=True,
            fields={
                "lq": feedline.Image("lq.image", feedline.RandomCrop(48), feedline.RandomHorizontalFlip()),
                "gt": feedline.Image("gt.image", like="lq", scale=4),
            },
        )

    A field of a part is called ``part.field``: ``gt.png`` is what ``png`` is without a join, ``gt.image`` the value of a
    database. The samples, their number, order and keys are those of the first part; what the others have in which order
    does not matter. Parts may be of any kind that `Loader` takes, but not compressed.

    Keys are compared when the dataset is opened, both ways, and must be unique in their part. Each row is read in one go,
    from all its parts.

    Args:
        parts: Two to four names with their shards, as `Loader` takes them.
        unpaired: Samples whose key another part does not have: ``"error"``, the dataset is refused with how many they are
            and the first of them; ``"drop"``, they are left out of every epoch, counted and named in the log.
        keys: How the keys of a part are written, by its name, with ``{}`` for what all parts share: ``{"lq": "{}x4"}``
            where ``0001x4`` belongs to ``0001``.
    """

    def __init__(
        self,
        parts: Mapping[str, Shards],
        unpaired: Literal["error", "drop"] = "error",
        keys: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(parts, Mapping) or not 2 <= len(parts) <= PARTS_MAX:
            raise TypeError(
                f"a Join is made of 2 to {PARTS_MAX} parts, as in Join({{\"lq\": \"lq.lmdb\", \"gt\": \"gt.lmdb\"}}), got {parts!r}"
            )
        for name in parts:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValueError(
                    f"part {name!r} of the Join: a name is of the letters a to z, digits, _ and -, as its fields are called "
                    "name.field"
                )
        self.parts = {name: arguments.shard_patterns(shards) for name, shards in parts.items()}
        self.unpaired = arguments.one_of("unpaired", unpaired, ("error", "drop"))
        self.keys = {name: _template(name, template, self.parts) for name, template in dict(keys or {}).items()}

    def spec(self, shard_counts: list[int]) -> dict[str, Any]:
        """The JSON that the sidecar is told; `shard_counts` are the shards of each part."""
        counts = zip(self.parts, shard_counts, strict=True)
        parts = [{"name": name, "shards": count, "keys": self.keys.get(name)} for name, count in counts]
        return {"parts": parts, "unpaired": self.unpaired}

    def __repr__(self) -> str:
        parts = ", ".join(f"{name!r}: {shards[0] if len(shards) == 1 else shards!r}" for name, shards in self.parts.items())
        return f"Join({{{parts}}})"


def _template(name: object, template: object, parts: Mapping[str, Any]) -> str:
    if name not in parts:
        raise ValueError(f"keys= names {name!r}, which is no part of the Join; the parts are {', '.join(parts)}")
    if not isinstance(template, str) or template.count("{}") != 1:
        raise ValueError(
            f"keys[{name!r}] has {{}} once, for what the parts share, as in \"{{}}x4\"; got {template!r}"
        )
    return template
