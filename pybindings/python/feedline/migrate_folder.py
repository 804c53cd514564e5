"""From torchvision's folder datasets to Feedline's: which files, in which order, with which class numbers.

Feedline lists a folder by itself. What it will find is worked out here from the same rules, and compared with the
dataset's own list, so that a difference is an error now and not other labels later.
"""

from __future__ import annotations

import os
from typing import Any

from .fields import Image, Int
from .migrate_reading import Reading, is_identity, shown
from .migrate_transforms import Pipeline

#: Endings that Feedline takes for images in a folder.
_ENDINGS = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif", "avif")


def read_folder(dataset: Any, reading: Reading) -> list[int] | None:
    """Reads an `ImageFolder`, a `DatasetFolder` or a `Subset` of one.

    Returns:
        Feedline's number of each of the dataset's samples; None where they are the same.
    """
    from torchvision.datasets import folder

    subset: list[int] | None = None
    where = "dataset"
    while type(dataset).__name__ == "Subset" and type(dataset).__module__ == "torch.utils.data.dataset":
        # Negative ones count from the end, as torch's Subset takes them.
        total = len(dataset.dataset)
        indices = [int(index) + (total if index < 0 else 0) for index in dataset.indices]
        if not indices:
            reading.refuse(f"{where} Subset", "it has no samples", "a Subset of at least one")
        subset = indices if subset is None else [indices[number] for number in subset]
        dataset = dataset.dataset
        where += ".dataset"
    at = f"{where} {type(dataset).__name__}"
    if not isinstance(dataset, folder.DatasetFolder):
        reading.refuse(at, "only ImageFolder, DatasetFolder, ImageNet and webdataset pipelines can be read", _instead(dataset))
        return None
    if type(dataset).__getitem__ is not folder.DatasetFolder.__getitem__:
        reading.refuse(at, "its __getitem__ is code of your own, which runs in no sidecar",
                       "fields= of what a sample has, or collate_fn= over whole batches")  # fmt: skip
    if dataset.loader not in (folder.default_loader, folder.pil_loader):
        reading.refuse(f"{where}.loader={shown(dataset.loader)}", "files are decoded by the sidecar",
                       "torchvision.datasets.folder.default_loader, whose pixels Feedline gives")  # fmt: skip
    if not is_identity(dataset.target_transform):
        reading.refuse(f"{where}.target_transform={shown(dataset.target_transform)}", "a Python function runs in no sidecar",
                       "collate_fn= that maps the labels of a batch", "collate_fn")  # fmt: skip
    reading.shards = os.path.abspath(dataset.root)
    pipeline = Pipeline()
    pipeline.add(dataset.transform, f"{where}.transform")
    endings = [ending.lstrip(".") for ending in dataset.extensions or _ENDINGS]
    take_pipeline(pipeline, "image", endings, f"{where}.transform", reading)
    reading.fields["label"] = Int("cls")
    numbers = _numbers(dataset, reading, at)
    if subset is None:
        return numbers
    return subset if numbers is None else [numbers[number] for number in subset]


def take_pipeline(pipeline: Pipeline, name: str, sources: list[str], where: str, reading: Reading) -> None:
    """Adds an image field called `name` with what `pipeline` does, and the output."""
    reading.problems += pipeline.problems
    if pipeline.state == "picture":
        reading.refuse(where, "its result is a picture of Pillow's, of which torch makes no batch", "ToTensor() at its end",
                       "fields")  # fmt: skip
    output = pipeline.output()
    try:
        reading.fields[name] = Image(sources, *pipeline.pixels)
    except (TypeError, ValueError) as error:
        reason, _, instead = str(error).removeprefix("Image: ").partition(": ")
        # What half a pipeline lacks may be in the other half.
        if not pipeline.problems:
            reading.refuse(where, reason, instead or "other transforms", "fields")
    # DataLoader's tensors are contiguous.
    reading.options["layout"] = "NCHW"
    if output is not None:
        reading.options["output"] = output


def _numbers(dataset: Any, reading: Reading, at: str) -> list[int] | None:
    """Feedline's number of each file of `dataset.samples`; None where both have the same files in the same order."""
    root = os.path.abspath(dataset.root)
    listed, classes = list_images(root)
    places = {path: number for number, path in enumerate(listed)}
    paths = [_below(path, dataset.root, root) for path, _ in dataset.samples]
    unknown = [path for path in paths if path not in places]
    if unknown:
        reading.refuse(at, f"{len(unknown)} of its {len(paths)} files are none that Feedline reads, the first {unknown[0]!r}",
                       f"names that are not hidden and end in {', '.join(_ENDINGS)}")  # fmt: skip
        return None
    wrong = [
        (path, target) for path, (_, target) in zip(paths, dataset.samples, strict=True)
        if classes.get(path.partition(os.sep)[0]) != target
    ]  # fmt: skip
    if wrong:
        path, target = wrong[0]
        number = classes.get(path.partition(os.sep)[0])
        reading.refuse(at, f"its class numbers are not those of the folders in order: {path!r} has {target}, not {number}",
                       "collate_fn= that maps the labels of a batch", "collate_fn")  # fmt: skip
    numbers = [places[path] for path in paths]
    return None if numbers == list(range(len(listed))) else numbers


def _below(path: str, given: str, root: str) -> str:
    """`path` relative to `root`, which the dataset calls `given`; a million of them are cut in a moment."""
    prefix = os.path.join(given, "")
    return path.removeprefix(prefix) if path.startswith(prefix) else os.path.relpath(os.path.abspath(path), root)


def list_images(root: str) -> tuple[list[str], dict[str, int]]:
    """The images below `root` in Feedline's order, relative to it, and the number of each class."""
    folders: dict[str, list[str]] = {}
    seen: set[tuple[int, int]] = set()
    level = [""]
    while level:
        below: list[str] = []
        for folder in level:
            state = os.stat(os.path.join(root, folder))
            # A link to a folder that was listed already is not followed.
            if (state.st_dev, state.st_ino) in seen:
                continue
            seen.add((state.st_dev, state.st_ino))
            files = folders[folder] = []
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in entries:
                    stem, _, ending = entry.name.rpartition(".")
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        below.append(os.path.join(folder, entry.name))
                    elif stem and ending.lower() in _ENDINGS and entry.is_file():
                        files.append(entry.name)
        level = sorted(below)
    listed = [os.path.join(folder, name) for folder in sorted(folders) for name in sorted(folders[folder])]
    classes = sorted(folder for folder in folders if folder and os.sep not in folder)
    return listed, {name: number for number, name in enumerate(classes)}


def _instead(dataset: Any) -> str:
    if type(dataset).__name__ == "ConcatDataset":
        return "feedline.Mix([(folder, weight), …]) in place of shards"
    if type(dataset).__module__.startswith("torchvision.datasets"):
        return "its images as a folder a class, or as shards"
    return "shards or a folder of images, which `feedline convert` makes shards of, and fields= of what a sample has"
