"""From webdataset's pipelines to Feedline's shards and fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .fields import Field, Int
from .migrate_folder import take_pipeline
from .migrate_reading import Reading, is_identity, shown
from .migrate_transforms import BYTES, FLOATS, PICTURE, Pipeline
from .values import Array, Json, Text

#: What webdataset's decoder makes of an image, by the name of the decoder; others are refused.
_DECODERS = {"pil": PICTURE, "pilrgb": PICTURE, "torch": FLOATS, "torchrgb": FLOATS, "torchrgb8": BYTES}

#: Endings of images, and of what else the decoder knows.
_IMAGES = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "bmp", "tif", "tiff", "gif")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")


def is_pipeline(dataset: Any) -> bool:
    """Whether it is one of webdataset's."""
    return any(base.__module__ == "webdataset.pipeline" and base.__name__ == "DataPipeline" for base in type(dataset).__mro__)


class Stages:
    """Reads the stages of a pipeline in order."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.names: list[str] = []
        self.decoder: str | None = None
        self.renamed: dict[str, str] = {}
        self.functions: dict[str, list[tuple[str, Any]]] = {}
        self.shuffle = False
        #: Rows of a batch and whether a short last one is dropped, where the pipeline makes batches.
        self.batch: tuple[int, bool] | None = None

    def read(self, dataset: Any) -> None:
        """Reads a `WebDataset` or any other `DataPipeline`."""
        for number, stage in enumerate(dataset.pipeline):
            self._read_stage(stage, f"pipeline[{number}]")
        if getattr(dataset, "nsamples", -1) > 0 or getattr(dataset, "repetitions", 1) != 1:
            self.reading.refuse("with_epoch() or repeat()", "an epoch is every sample once",
                                "feedline.Mix([(shards, 1)], length=…) in place of shards, for epochs of another length")  # fmt: skip

    def read_after_loader(self, stages: Sequence[Any]) -> None:
        """Reads what follows the loader in a `WebLoader`: batches may be taken apart and made anew."""
        for number, stage in enumerate(stages):
            self._read_stage(stage, f"WebLoader stage {number + 1}")

    def _read_stage(self, stage: Any, where: str) -> None:
        name = getattr(stage, "__name__", type(stage).__name__)
        if name == "SimpleShardList":
            self._read_shards(stage.urls)
        elif name in ("StreamingOpen", "FileCache", "check_empty", "single_node_only", "split_by_node", "split_by_worker"):
            # Ranks and workers are Feedline's own business.
            pass
        elif name == "detshuffle":
            self.shuffle = True
        elif name == "FilterFunction":
            name = stage.f.__name__.removeprefix("_")
            read, at = getattr(self, f"_read_{name}", None), f"{where} .{name}()"
            if read is None:
                self.reading.refuse(at, "it has no counterpart", "leave it out, or do it to whole batches in collate_fn=")
            else:
                read(at, *stage.args, **stage.kw)
        elif name in ("ResampledShards", "DirectoryShardList"):
            self.reading.refuse(f"{where} {name}", "it draws shards with replacement, and an epoch is every sample once",
                                "the same shards without resampled=True, or weights= for drawing with replacement")  # fmt: skip
        else:
            self.reading.refuse(f"{where} {shown(stage)}", "code of your own runs in no sidecar", "leave it out")

    def _read_shards(self, urls: list[str]) -> None:
        far = [url for url in urls if ":" in url.partition("/")[0] and not url.startswith("file:")]
        if far:
            self.reading.refuse(f"shards {far[0]!r}", "shards are read from local files only", "copies on local storage")
        self.reading.shards = folded([url.removeprefix("file:") for url in urls])

    def _read_shuffle(self, where: str, size: int, **_: Any) -> None:
        self.shuffle = self.shuffle or bool(size)

    def _read_tar_file_expander(self, where: str, handler: Any = None, select_files: Any = None, rename_files: Any = None) -> None:
        for name, function in (("select_files", select_files), ("rename_files", rename_files)):
            if function is not None:
                self.reading.refuse(f"{name}={shown(function)}", "a Python function runs in no sidecar",
                                    "the members that the fields name; others are not read")  # fmt: skip

    def _read_group_by_keys(self, where: str, handler: Any = None, **_: Any) -> None:
        if "continue" in getattr(handler, "__name__", ""):
            self.reading.options["on_error"] = "replace"
            self.reading.notes.append("bad samples are replaced by others and counted, where webdataset leaves them out")

    def _read_map(self, where: str, function: Any, handler: Any = None) -> None:
        if type(function).__name__ != "Decoder":
            self.reading.refuse(f"{where} {shown(function)}", "a Python function runs in no sidecar",
                                "map_tuple with torchvision's transforms, or collate_fn= over whole batches")  # fmt: skip
            return
        for handler in function.handlers:
            if type(handler).__name__ == "ImageHandler":
                self.decoder = handler.imagespec
            elif getattr(handler, "__name__", "") not in ("basichandlers", "gzfilter") and type(handler).__name__ != "Continue":
                self.reading.refuse(f"{where} decode({shown(handler)})", "a Python function runs in no sidecar",
                                    "feedline.Bytes, whose bytes collate_fn= may decode")  # fmt: skip

    def _read_rename(self, where: str, handler: Any = None, keep: bool = True, **names: str) -> None:
        self.renamed.update(names)

    def _read_to_tuple(self, where: str, *names: Any, **_: Any) -> None:
        listed = [name for part in names for name in (part.split() if isinstance(part, str) else part)]
        self.names = [str(name) for name in listed]

    def _read_map_tuple(self, where: str, *functions: Any, handler: Any = None) -> None:
        for place, function in enumerate(functions):
            if place < len(self.names):
                self.functions.setdefault(self.names[place], []).append((f"{where}[{place}]", function))

    def _read_map_dict(self, where: str, handler: Any = None, **functions: Any) -> None:
        for name, function in functions.items():
            self.functions.setdefault(name, []).append((f"{where}[{name!r}]", function))

    def _read_batched(self, where: str, batchsize: int = 20, collation_fn: Any = None, partial: bool = True) -> None:
        if getattr(collation_fn, "__name__", "") != "default_collation_fn":
            self.reading.refuse(f"{where} collation_fn={shown(collation_fn)}", "it takes a list of samples, and batches come whole",
                                "collate_fn=, which takes a feedline.Batch", "collate_fn")  # fmt: skip
        self.batch = (batchsize, not partial)

    def _read_unbatched(self, where: str) -> None:
        self.batch = None

    def fields(self) -> None:
        """Adds the fields to the reading, once all stages are known."""
        if not self.names:
            self.reading.refuse("pipeline", "samples are dicts of all members", ".to_tuple(\"jpg\", \"cls\") of those that count",
                                "fields")  # fmt: skip
        for name in self.names:
            sources = [source.lstrip(".") for source in self.renamed.get(name, name).split(";")]
            word = re.sub(r"\W+", "_", sources[0])
            ending = sources[0].rpartition(".")[2].lower()
            functions = [entry for key in dict.fromkeys((name, *sources)) for entry in self.functions.get(key, [])]
            if ending in _IMAGES:
                self._add_image(word, sources, functions)
            else:
                self._add_value(word, ending, sources, functions)

    def _add_image(self, word: str, sources: list[str], functions: list[tuple[str, Any]]) -> None:
        if self.decoder not in _DECODERS:
            has_none = self.decoder is None
            given = "there is no image decoder" if has_none else f"decode({self.decoder!r}) gives no picture or tensor in RGB"
            self.reading.refuse(f"field {sources[0]!r}", given, "decode(\"pil\") before the transforms", "fields")
            return
        pipeline = Pipeline(_DECODERS[self.decoder])
        for where, function in functions:
            pipeline.add(function, where)
        name = "image" if "image" not in self.reading.fields else word
        take_pipeline(pipeline, name, sources, functions[0][0] if functions else f"field {sources[0]!r}", self.reading)

    def _add_value(self, word: str, ending: str, sources: list[str], functions: list[tuple[str, Any]]) -> None:
        field: Field | None = None
        if ending in _NUMBERS:
            field, word = Int(sources), "label" if "label" not in self.reading.fields else word
        elif ending in ("txt", "text", "transcript"):
            field = Text(sources)
        elif ending in ("json", "jsn"):
            field = Json(sources)
        elif ending == "npy":
            field = Array(sources, shape=None, dtype="float32")
            self.reading.notes.append(f"{word}: arrays come as a list of float32; give fields= for a fixed shape or another type")
        if field is None:
            self.reading.refuse(f"field {sources[0]!r}", "what it holds is not known by its name",
                                "fields= with feedline.Bytes, Text, Json, Int, Float or Array for it", "fields")  # fmt: skip
            return
        for where, function in functions:
            if not is_identity(function) and not (function is int and isinstance(field, Int)):
                self.reading.refuse(f"{where} {shown(function)}", "a Python function runs in no sidecar",
                                    "collate_fn= over whole batches", "fields", "collate_fn")  # fmt: skip
        self.reading.fields[word] = field


def folded(paths: list[str]) -> str | list[str]:
    """The paths as one pattern with braces, where their numbers follow each other."""
    if len(paths) == 1:
        return paths[0]
    parts = [re.fullmatch(r"(.*?)(\d+)(\D*)", path, re.DOTALL) for path in paths]
    first, last = parts[0], parts[-1]
    if first is None or last is None:
        return paths
    before, low, after = first.groups()
    high = last[2]
    numbers = range(int(low), int(high) + 1)
    is_run = len(numbers) == len(paths) and all(
        path == f"{before}{number:0{len(low)}d}{after}" for path, number in zip(paths, numbers, strict=True)
    )
    return f"{before}{{{low}..{high}}}{after}" if is_run else paths
