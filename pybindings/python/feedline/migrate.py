"""From a torch DataLoader to the `Loader` that delivers the same: `from_dataloader`.

What is read is the DataLoader's own objects, never their code: a class-per-folder dataset or a webdataset pipeline, the
transforms of torchvision, the sampler. What a `Loader` cannot say is an error with one line for each thing.
"""

from __future__ import annotations

import logging
from typing import Any, Literal, overload

from . import ranks
from .errors import LoaderError
from .loader import Loader
from .migrate_code import loader_code
from .migrate_folder import read_folder
from .migrate_reading import Problem, Reading, shown
from .migrate_webdataset import Stages, is_pipeline

logger = logging.getLogger("feedline")

#: Most sample numbers that are written out in code.
_WRITTEN_MAX = 64

#: Arguments that say the same as others: where the key is given, the others are not taken over.
_REPLACES = {
    "order": ("shuffle",),
    "tail": ("drop_last",),
    "generator": ("seed",),
    "slots": ("prefetch_factor",),
    "weights": ("indices", "shuffle"),
    "indices": ("weights", "epoch_length"),
    "device": ("pin_memory",),
}


class MigrationError(LoaderError, ValueError):
    """A DataLoader does something that no `Loader` can; the message has a line for each, with what to write instead.

    Attributes:
        problems: What it is, one by one.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"this DataLoader cannot be taken over, for {len(problems)} reason{'s' * (len(problems) > 1)}:{lines}")


@overload
def from_dataloader(dataloader: Any, *, explain: Literal[False] = False, **overrides: Any) -> Loader: ...
@overload
def from_dataloader(dataloader: Any, *, explain: Literal[True], **overrides: Any) -> str: ...
def from_dataloader(dataloader: Any, *, explain: bool = False, **overrides: Any) -> Loader | str:
    """The `Loader` that delivers what a torch DataLoader does.

    Read are DataLoaders over torchvision's ImageFolder (or DatasetFolder, ImageNet, or a Subset of one) and over pipelines
    of webdataset, with torchvision's transforms, v1 or v2. Taken over are the files and their order, class numbers,
    transforms, batch size, shuffling, ``drop_last``, the generator's seed, the sampler (sequential, random, weighted, of a
    subset, distributed), ``pin_memory``, ``timeout``, and ``prefetch_factor`` where it is not torch's default.

    Batches have the same shapes, types and memory format: floats, contiguous, normalised, where the transforms end so.
    Without shuffling samples come in the same order; pixels are those of Pillow within the bound of `TRANSFORMS.md`.
    Random numbers are others.

    Args:
        dataloader: The DataLoader, or a `webdataset.WebLoader`. It is not iterated.
        explain: Whether to make nothing and print the code that makes the loader, with what it does not express as
            comments.
        overrides: Arguments of `Loader` that replace those found, as ``device="cuda"``. ``fields=`` replaces all that the
            transforms say, ``collate_fn=`` the function of that name.

    Returns:
        The loader; with ``explain`` the code.

    Raises:
        MigrationError: Something cannot be expressed.
        TypeError: It is no DataLoader.
    """
    reading = read(dataloader)
    replaced = {name for key in overrides for name in _REPLACES.get(key, ())}
    if "fields" in overrides:
        replaced |= {"output", "layout"}
    taken = {name: value for name, value in reading.options.items() if name not in replaced}
    options = {**taken, "fields": reading.fields, **overrides}
    for name in overrides:
        reading.code.pop(name, None)
    problems = [problem for problem in reading.problems if not any(name in overrides for name in problem.resolved_by)]
    if explain:
        code = loader_code(reading, options, problems)
        print(code, end="")
        return code
    if problems:
        raise MigrationError(problems)
    for note in reading.notes:
        logger.info("from_dataloader: %s", note)
    return Loader(reading.shards, **options)


def read(dataloader: Any) -> Reading:
    """All that can be known of a DataLoader or a WebLoader."""
    reading = Reading()
    after_loader: list[Any] = []
    if is_pipeline(dataloader) and dataloader.pipeline and _is_dataloader(dataloader.pipeline[0]):
        dataloader, *after_loader = dataloader.pipeline
    if not _is_dataloader(dataloader):
        raise TypeError(f"from_dataloader takes a torch.utils.data.DataLoader or a webdataset.WebLoader, got {shown(dataloader)}")
    if is_pipeline(dataloader.dataset):
        _read_pipeline(dataloader, after_loader, reading)
    else:
        _read_dataset(dataloader, reading)
    _read_rest(dataloader, reading)
    return reading


def _is_dataloader(value: Any) -> bool:
    return any(base.__module__ == "torch.utils.data.dataloader" and base.__name__ == "DataLoader" for base in type(value).__mro__)


def _read_pipeline(dataloader: Any, after_loader: list[Any], reading: Reading) -> None:
    """A webdataset pipeline, whose batches are made in the pipeline, by the DataLoader, or after it."""
    stages = Stages(reading)
    stages.read(dataloader.dataset)
    if dataloader.batch_size is not None:
        stages.batch = (dataloader.batch_size, dataloader.drop_last)
        _read_collate(dataloader, reading)
    stages.read_after_loader(after_loader)
    stages.fields()
    if stages.batch is None:
        reading.refuse("batch_size=None", "no stage makes batches", "batch_size=", "batch_size")
    else:
        reading.options["batch_size"], is_dropping = stages.batch
        if is_dropping:
            reading.options["drop_last"] = True
    reading.options["shuffle"] = stages.shuffle
    if stages.shuffle:
        reading.notes.append("shuffle=True is a permutation of all samples, where webdataset's buffers shuffle near ones")
    _read_seed(dataloader.generator, reading)


def _read_dataset(dataloader: Any, reading: Reading) -> None:
    """A dataset with a sampler."""
    numbers = read_folder(dataloader.dataset, reading)
    batches = dataloader.batch_sampler
    sampler = dataloader.sampler
    size, is_dropping = dataloader.batch_size, dataloader.drop_last
    if size is None and _class_name(batches) == "torch.utils.data.sampler.BatchSampler":
        sampler, size, is_dropping = batches.sampler, batches.batch_size, batches.drop_last
    if size is None and batches is not None:
        reading.refuse(f"batch_sampler={shown(batches)}", "it picks samples in the trainer",
                       "batch_size= and shuffle=, or indices= and weights=", "batch_size")  # fmt: skip
    elif size is None:
        reading.refuse("batch_size=None", "single samples without a batch are not delivered", "batch_size=1", "batch_size")
    else:
        reading.options["batch_size"] = int(size)
    if batches is None or size is not None:
        _read_sampler(sampler, dataloader, numbers, reading)
    if is_dropping:
        reading.options["drop_last"] = True
    _read_collate(dataloader, reading)


def _read_sampler(sampler: Any, dataloader: Any, numbers: list[int] | None, reading: Reading) -> None:
    """The sampler: an order, a subset, weights, or a rank; `numbers` are those of the dataset's samples."""
    options = reading.options
    name = _class_name(sampler).rpartition(".")[2] if _class_name(sampler).startswith("torch.utils.data.") else ""
    count = len(sampler.data_source) if hasattr(sampler, "data_source") else 0
    generator = getattr(sampler, "generator", None) or dataloader.generator
    weights: list[float] | None = None
    is_subset = False
    if name == "SequentialSampler" and count == len(dataloader.dataset):
        options["shuffle"] = False
    elif name == "RandomSampler" and not sampler.replacement and sampler.num_samples == count:
        options["shuffle"] = True
    elif name == "RandomSampler" and sampler.replacement:
        weights = [1.0] * count
        reading.code["weights"] = f"[1.0] * {count}"
    elif name == "WeightedRandomSampler" and sampler.replacement:
        weights = sampler.weights.tolist()
        if len(weights) > _WRITTEN_MAX:
            reading.code["weights"] = "dataloader.sampler.weights"
    elif name == "SubsetRandomSampler":
        options["shuffle"], is_subset = True, True
        numbers = [index if numbers is None else numbers[index] for index in map(int, sampler.indices)]
    elif name == "DistributedSampler":
        options["shuffle"] = bool(sampler.shuffle)
        _read_rank(sampler, reading)
    else:
        reading.refuse(f"sampler={shown(sampler)}", "it picks samples in the trainer",
                       "shuffle= for an order, indices= for a subset, weights= for drawing with replacement",
                       "indices", "weights", "shuffle", "order")  # fmt: skip
    if weights is not None:
        if numbers is not None:
            reading.refuse(f"sampler={name}", "it draws from a subset, or from another order of files",
                           "weights= for all files of the folder, 0 for those left out", "weights")  # fmt: skip
        options.update(weights=weights, epoch_length=sampler.num_samples)
    elif numbers is not None:
        options["indices"] = numbers
        if len(numbers) > _WRITTEN_MAX:
            holder, name_there = (sampler, "sampler") if is_subset else (dataloader.dataset, "dataset")
            reading.code["indices"] = _numbers_code(numbers, holder, name_there)
    if name == "DistributedSampler":
        options["seed"] = int(sampler.seed)
    else:
        _read_seed(generator, reading)


def _read_rank(sampler: Any, reading: Reading) -> None:
    found = ranks.find()
    if (found.rank, found.world_size) != (sampler.rank, sampler.num_replicas):
        reading.options.update(rank=sampler.rank, world_size=sampler.num_replicas)
    if sampler.drop_last:
        reading.options["drop_last"] = True
    else:
        reading.notes.append("nothing is repeated to make ranks equal: the last batch is split over them; tail=\"pad\" repeats")


def _read_seed(generator: Any, reading: Reading) -> None:
    if generator is not None:
        reading.options["seed"] = int(generator.initial_seed()) & (2**64 - 1)
    elif reading.options.get("shuffle", "weights" in reading.options):
        reading.notes.append("there is no generator, so seed=0: every run has the same order, unless seed= says another")
    if reading.options.get("shuffle", "weights" in reading.options):
        reading.notes.append("a bad picture is replaced and counted, up to 1 % of them; on_error=\"raise\" stops as torch does")


def _read_collate(dataloader: Any, reading: Reading) -> None:
    name = _class_name(dataloader.collate_fn, is_instance=False)
    if name != "torch.utils.data._utils.collate.default_collate":
        reading.refuse(f"collate_fn={shown(dataloader.collate_fn)}", "it takes a list of samples, and batches come whole",
                       "collate_fn=, which takes a feedline.Batch, or batch_transform=feedline.MixUp(num_classes=…) or CutMix",
                       "collate_fn", "batch_transform")  # fmt: skip


def _read_rest(dataloader: Any, reading: Reading) -> None:
    """What has to do with transport alone."""
    options = reading.options
    if dataloader.pin_memory:
        options["pin_memory"] = True
    if dataloader.timeout:
        options["timeout"] = dataloader.timeout
    if dataloader.num_workers and dataloader.prefetch_factor not in (None, 2):
        # torch counts the batches of each worker.
        options["prefetch_factor"] = dataloader.num_workers * dataloader.prefetch_factor
    if dataloader.worker_init_fn is not None:
        reading.notes.append("worker_init_fn is left out: there are no Python workers, and seed= keys all randomness")
    if dataloader.num_workers:
        count = dataloader.num_workers
        reading.notes.append(f"num_workers={count} is left out: the sidecar takes the usable cores; workers= says otherwise")


def _class_name(value: Any, is_instance: bool = True) -> str:
    named = type(value) if is_instance else value
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _numbers_code(numbers: list[int], holder: Any, name: str) -> str:
    """A long list of sample numbers as code: a range, or where in the DataLoader it is, or all of them."""
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"range({numbers[0]}, {numbers[0] + len(numbers)})"
    is_there = hasattr(holder, "indices") and list(map(int, holder.indices)) == numbers
    return f"dataloader.{name}.indices" if is_there else repr(numbers)
