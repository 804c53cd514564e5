"""What has been read of a DataLoader: `Loader`'s arguments so far, remarks, and what they cannot say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .fields import Field

#: Longest description of an object in a message.
_SHOWN = 100


@dataclass(frozen=True)
class Problem:
    """One thing that a `Loader` cannot express.

    Attributes:
        where: The part of the DataLoader, as one would write it.
        reason: Why it cannot be taken over.
        instead: What to write in its place.
        resolved_by: Arguments of `Loader` that say it in another way: where one of them is given, there is no problem.
    """

    where: str
    reason: str
    instead: str
    resolved_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}. Instead: {self.instead}"


@dataclass
class Reading:
    """`Loader`'s arguments as far as they are known.

    Attributes:
        shards: The first argument.
        fields: The fields of a batch, in order.
        options: All other arguments by name.
        code: How an argument is written where its value is too long for that, by name.
        notes: What is not the same, though the loader is equal in what counts.
        problems: What cannot be expressed.
    """

    shards: str | list[str] = ""
    fields: dict[str, Field] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, where: str, reason: str, instead: str, *resolved_by: str) -> None:
        """Adds a problem."""
        self.problems.append(Problem(where, reason, instead, resolved_by))


def shown(value: object) -> str:
    """A short description of an object on one line."""
    name = getattr(value, "__qualname__", None)
    if callable(value) and isinstance(name, str):
        return f"lambda at {_place(value)}" if "<lambda>" in name else name
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _place(function: Any) -> str:
    code = function.__code__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def is_identity(function: Any) -> bool:
    """Whether `function` is None, or a Python function that returns its argument and does nothing else."""
    if function is None:
        return True
    code, pattern = getattr(function, "__code__", None), _returned.__code__
    return code is not None and code.co_code == pattern.co_code and code.co_argcount == 1


def _returned(value: Any) -> Any:
    return value
