"""A `Loader` with its arguments as code to paste."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from .fields import Image, Int
from .migrate_reading import Problem, Reading
from .output import Output
from .transforms import Resize, Transform
from .values import Json, Text

#: Longest line of code.
_WIDTH = 120

#: Arguments that come first, in this order.
_FIRST = ("batch_size", "shuffle", "seed", "drop_last", "rank", "world_size")


def loader_code(reading: Reading, options: Mapping[str, Any], problems: list[Problem]) -> str:
    """The code that makes the loader; what is not expressed and what is not the same stands above it."""
    lines = ["import feedline", ""]
    lines += [f"# NOT EXPRESSED: {problem}" for problem in problems]
    lines += [f"# {note}" for note in reading.notes]
    lines += ["loader = feedline.Loader(", f"    {reading.shards!r},"]
    for name in sorted(options, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        if name != "fields":
            lines.append(f"    {name}={reading.code.get(name) or written(options[name])},")
    if "fields" in options:
        lines.append("    fields={")
        for name, value in options["fields"].items():
            lines += _field_lines(name, value)
        lines.append("    },")
    return "\n".join([*lines, ")", ""])


def _field_lines(name: str, value: Any) -> list[str]:
    line = f"        {name!r}: {written(value)},"
    if len(line) <= _WIDTH or not isinstance(value, Image):
        return [line]
    inner = [f"            {argument}," for argument in (written(list(value.sources)), *map(written, value.transforms))]
    return [f"        {name!r}: feedline.Image(", *inner, "        ),"]


def written(value: Any) -> str:
    """An argument as code, in which Feedline is called ``feedline``."""
    if isinstance(value, Image):
        return f"feedline.Image({', '.join(map(written, (list(value.sources), *value.transforms)))})"
    if type(value) in (Int, Text, Json) and len(value.sources) == 1:
        return f"feedline.{type(value).__name__}({value.sources[0]!r})"
    if isinstance(value, Output):
        normalize = (tuple(value.mean), tuple(value.std))
        usual = normalize == ((0.0,) * 3, (1.0,) * 3)
        rest = "" if usual else f", normalize={normalize!r}"
        return f"feedline.Output({value.dtype!r}, channels_last={value.channels_last}{rest})"
    if isinstance(value, Transform):
        return _transform(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(map(written, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if type(value).__module__ == "torch" and type(value).__name__ == "device":
        return repr(str(value))
    if isinstance(getattr(value, "__qualname__", None), str):
        # A function or a class: its name is all there is.
        return str(value.__qualname__)
    text = repr(value)
    # Fields other than images show themselves as they are written, with what differs from the usual left out.
    return f"feedline.{text}" if type(value).__module__.startswith("feedline.") else text


def _transform(transform: Transform) -> str:
    """A transform with those of its arguments that differ from their defaults; sides of a square as one number."""
    arguments: list[str] = []
    assert is_dataclass(transform), "transforms are dataclasses"
    for entry in fields(transform):
        value = getattr(transform, entry.name)
        if entry.default is not MISSING and (value == entry.default or _listed(value) == _listed(entry.default)):
            continue
        if "size" in entry.name and not isinstance(transform, Resize) and isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]
        if entry.default is MISSING:
            arguments.append(written(value))
        else:
            arguments.append(f"{entry.name}={written(value)}")
    return f"feedline.{type(transform).__name__}({', '.join(arguments)})"


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value
