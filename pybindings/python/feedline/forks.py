"""What a fork changes: in the child, connections of the parent are closed and its batches refused."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

#: Counted up in a forked child, so that what was made before the fork is told apart.
generation = 0

_closers: weakref.WeakSet[object] = weakref.WeakSet()
_callbacks: list[Callable[[], None]] = []
_is_registered = False


def close_in_child(closeable: object) -> None:
    """Calls ``closeable.close()`` in every forked child, as long as `closeable` lives."""
    _register()
    _closers.add(closeable)


def call_in_child(callback: Callable[[], None]) -> None:
    """Calls `callback` in every forked child."""
    _register()
    _callbacks.append(callback)


def _register() -> None:
    global _is_registered
    if not _is_registered:
        os.register_at_fork(after_in_child=_after_in_child)
        _is_registered = True


def _after_in_child() -> None:
    global generation
    generation += 1
    for closeable in list(_closers):
        closeable.close()  # type: ignore[attr-defined]
    _closers.clear()
    for callback in _callbacks:
        callback()
