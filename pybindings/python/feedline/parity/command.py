"""The command ``feedline parity``: a table of the transforms, each on one's own images beside its reference."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Images are brought to this size before the operations on pixels, in pixels.
SIDE = 256

_SEED = 5

#: Boxes drawn for each image.
_BOXES = 8

#: Transforms that turn a box into the hull of its corners.
_MOVING = ("random_rotation", "random_affine", "random_perspective")


@dataclass
class Row:
    """One transform.

    Attributes:
        transform: As Python writes it.
        reference: Who it is compared with.
        largest: The largest difference of a value, in levels of 0 to 255; of an edge, in pixels, for boxes.
        mean: The mean difference.
        beyond: Share of values that differ by more than one level; of pixels that differ at all for a nearest pick; of
            boxes that only one of both keeps.
        bound: What `largest` may be; None for a nearest pick.
        bound_beyond: What `beyond` may be.
        ok: Whether both hold.
    """

    transform: str
    reference: str
    largest: float
    mean: float
    beyond: float
    bound: float | None
    bound_beyond: float
    ok: bool


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status: 0 if every bound holds, 1 if one does not, 2 if it cannot run."""
    parser = argparse.ArgumentParser(
        prog="feedline parity",
        description="Compares Feedline's transforms with Pillow's and torchvision's, on the same parameters, on your images.",
    )
    parser.add_argument("images", nargs="+", type=Path, help="image files, or folders of them")
    parser.add_argument("--count", type=int, default=64, help="images taken at most, spread over all (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(arguments)
    try:
        from . import reference  # noqa: F401, to see whether it is there
    except ImportError as error:
        print(f"error: the references are missing ({error}): pip install torch torchvision pillow", file=sys.stderr)
        return 2
    paths = list(_files(options.images))
    if not paths:
        print(f"error: no JPEG, PNG or WebP file in {', '.join(map(str, options.images))}", file=sys.stderr)
        return 2
    paths = paths[:: -(-len(paths) // max(options.count, 1))]
    rows, left_out = compare(paths)
    is_ok = all(row.ok for row in rows)
    if options.json:
        print(json.dumps({"images": len(paths), "left_out": left_out, "ok": is_ok, "rows": [asdict(row) for row in rows]}))
    else:
        print(table(rows, len(paths) - len(left_out), left_out))
    return 0 if is_ok else 1


def _files(places: list[Path]) -> Iterator[Path]:
    for place in places:
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in found:
            if place == path or path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp"):
                yield path


def compare(paths: list[Path]) -> tuple[list[Row], list[str]]:
    """The table over the images at `paths`, and in words which of them were left out."""
    from PIL import Image, UnidentifiedImageError

    pictures: list[Any] = []
    left_out = []
    with tempfile.TemporaryDirectory(prefix="feedline-parity-") as folder:
        shard = Path(folder, "images.tar")
        with tarfile.open(shard, "w") as tar:
            for path in paths:
                try:
                    body = path.read_bytes()
                    picture = Image.open(io.BytesIO(body)).convert("RGB")
                except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
                    left_out.append(f"{path}: {error}")
                    continue
                boxes = json.dumps(_boxes(len(pictures), picture.size)).encode()
                for suffix, content in (("img", body), ("json", boxes)):
                    member = tarfile.TarInfo(f"{len(pictures):06}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                pictures.append(picture)
        rows = list(_rows(str(shard), pictures)) if pictures else []
    return rows, left_out


def _boxes(number: int, size: tuple[int, int]) -> list[list[float]]:
    """Some boxes of a picture, each with a label."""
    import numpy

    corners = numpy.sort(numpy.random.default_rng(number).random((_BOXES, 2, 2)), axis=1) * size
    return [[*box, label] for label, box in enumerate(corners.reshape(-1, 4).tolist())]


def operations() -> list[Any]:
    """One of each transform that works on pixels."""
    import feedline

    return [
        feedline.ColorJitter(brightness=0.9),
        feedline.ColorJitter(contrast=0.9),
        feedline.ColorJitter(saturation=0.9),
        feedline.ColorJitter(hue=0.5),
        feedline.Grayscale(),
        feedline.RandomSolarize(128, 1.0),
        feedline.RandomPosterize(3, 1.0),
        feedline.RandomEqualize(1.0),
        feedline.RandomAutocontrast(1.0),
        feedline.RandomInvert(1.0),
        feedline.RandomAdjustSharpness(2.0, 1.0),
        feedline.GaussianBlur(9),
        feedline.RandomErasing(1.0, value=(10, 20, 255)),
        feedline.RandomRotation(30, "bilinear"),
        feedline.RandomAffine(20, (0.2, 0.3), (0.5, 2.0), (-20, 20), "bilinear"),
        feedline.RandomPerspective(0.5, 1.0),
        feedline.RandomRotation(30, "nearest"),
    ]


def _rows(shard: str, pictures: list[Any]) -> Iterator[Row]:
    """Decode, crop and resize against Pillow, then every operation on images of one size against torchvision."""
    import numpy
    import torch

    import feedline

    from . import reference

    crop = (feedline.RandomResizedCrop(224), feedline.RandomHorizontalFlip())
    base = (feedline.Resize((SIDE, SIDE)),)
    chosen = operations()
    fields: dict[str, Any] = {"crop": feedline.Image("img", *crop), "base": feedline.Image("img", *base)}
    fields |= {str(number): feedline.Image("img", *base, transform) for number, transform in enumerate(chosen)}
    differences: list[list[Any]] = [[] for _ in fields]
    moving: dict[str, tuple[Any, ...]] = {"crop": crop}
    moving |= {str(number): (*base, transform) for number, transform in enumerate(chosen) if _moves_freely(transform)}
    of_boxes: dict[str, list[Any]] = {name: [] for name in moving}
    loaded = fields | {f"boxes of {name}": feedline.Boxes("json", of=name) for name in moving}
    with _quiet_loader(shard, loaded) as loader:
        sample = 0
        for batch in loader:
            targets = {name: batch[f"boxes of {name}"].targets() for name in moving}
            for row in range(len(batch["base"])):
                picture = pictures[sample]
                pixels = {name: batch[name][row].permute(1, 2, 0).numpy().astype(numpy.int16) for name in fields}
                for place, (name, transforms) in enumerate((("crop", crop), ("base", base))):
                    (steps,) = reference.drawn(transforms, picture.size, _SEED, sample)
                    expected = reference.by_pillow(picture, [step["resample"] for step in steps])
                    differences[place].append(numpy.abs(pixels[name] - expected))
                source = torch.from_numpy(pixels["base"].astype(numpy.uint8)).permute(2, 0, 1)
                for number, transform in enumerate(chosen):
                    (steps,) = reference.drawn((*base, transform), picture.size, _SEED, sample)
                    image = source
                    for step in steps:
                        if "operation" in step:
                            image = reference.by_torchvision(*reference.named(step), image)
                    expected = image.permute(1, 2, 0).numpy()
                    differences[2 + number].append(numpy.abs(pixels[str(number)] - expected))
                for name, moved in moving.items():
                    (steps,) = reference.drawn(moved, picture.size, _SEED, sample)
                    of_boxes[name].append(_beside(targets[name][row], _boxes(sample, picture.size), picture.size, steps))
                sample += 1
    for place, words in enumerate(("decode, RandomResizedCrop(224), flip", f"decode, Resize(({SIDE}, {SIDE}))")):
        yield _row(words, "Pillow", differences[place], *reference.RESAMPLE_BOUND)
    for number, transform in enumerate(chosen):
        (steps,) = reference.drawn((*base, transform), pictures[0].size, _SEED)
        name, parameters = next(reference.named(step) for step in steps if "operation" in step)
        if name == "warp" and parameters["interpolation"] == "nearest":
            yield _nearest_row(repr(transform), differences[2 + number], reference.NEAREST_SHARE)
        else:
            bound = reference.BOUNDS["bilinear" if name == "warp" else name]
            yield _row(repr(transform), "torchvision", differences[2 + number], *bound)
    for name, moved in moving.items():
        words = "RandomResizedCrop(224), flip" if name == "crop" else repr(moved[-1])
        yield _boxes_row(f"boxes, {words}", of_boxes[name], *reference.BOX_BOUND)


def _moves_freely(transform: Any) -> bool:
    spec = transform.spec()
    return any(word in spec and spec[word]["warp"]["interpolation"] == "bilinear" for word in _MOVING)


def _beside(target: dict[str, Any], stored: list[list[float]], size: tuple[int, int], steps: Any) -> tuple[Any, int, int]:
    """Differences of edges, the boxes that one side alone keeps, and all boxes."""
    import torch

    from . import reference

    boxes = torch.tensor(stored, dtype=torch.float64)
    expected, labels = reference.boxes_by_torchvision(boxes[:, :4], boxes[:, 4].long(), size, steps)
    ours, theirs = target["labels"].tolist(), labels.tolist()
    both = [label for label in ours if label in theirs]
    pairs = [(target["boxes"][ours.index(label)].double(), expected[theirs.index(label)]) for label in both]
    difference = [float((own - other).abs().max()) for own, other in pairs]
    return difference, len(ours) + len(theirs) - 2 * len(both), len(stored)


def _boxes_row(transform: str, beside: list[tuple[Any, int, int]], bound: float, bound_beyond: float) -> Row:
    edges = [difference for differences, _, _ in beside for difference in differences] or [0.0]
    alone = sum(count for _, count, _ in beside) / sum(count for _, _, count in beside)
    largest = max(edges)
    is_ok = largest <= bound and alone <= bound_beyond
    return Row(transform, "torchvision", largest, sum(edges) / len(edges), alone, bound, bound_beyond, is_ok)


class _quiet_loader:
    """A loader over the images in order, closed at the end."""

    def __init__(self, shard: str, fields: dict[str, Any]) -> None:
        import feedline

        self.loader = feedline.Loader(shard, batch_size=8, shuffle=False, seed=_SEED, fields=fields, on_error="raise", name="parity")

    def __enter__(self) -> Any:
        return self.loader

    def __exit__(self, *_exception: object) -> None:
        self.loader.close()


def _row(transform: str, reference: str, differences: list[Any], bound: int, bound_beyond: float) -> Row:
    import numpy

    values = numpy.concatenate([difference.ravel() for difference in differences])
    largest, beyond = int(values.max()), float((values > 1).mean())
    is_ok = largest <= bound and beyond <= bound_beyond
    return Row(transform, reference, largest, float(values.mean()), beyond, bound, bound_beyond, is_ok)


def _nearest_row(transform: str, differences: list[Any], bound: float) -> Row:
    import numpy

    stacked = numpy.stack(differences)
    moved = float(stacked.any(-1).mean())
    return Row(transform, "torchvision", int(stacked.max()), float(stacked.mean()), moved, None, bound, moved <= bound)


def _short(transform: str) -> str:
    """Without the arguments that say nothing."""
    name, opening, arguments = transform.partition("(")
    kept = [part for part in re.split(r", (?=[a-z_]+=)", arguments.removesuffix(")")) if not part.endswith(("=None", "=False"))]
    return f"{name}{opening}{', '.join(kept)})" if "=" in arguments else transform


def table(rows: list[Row], count: int, left_out: list[str]) -> str:
    """The rows for a person."""
    from importlib import metadata

    cells = [["transform", "beside", "largest", "mean", "beyond 1", "may be", "ok"]]
    for row in rows:
        bound = "any" if row.bound is None else f"{row.bound}"
        cells.append([
            _short(row.transform),
            row.reference,
            f"{row.largest:.5f}" if isinstance(row.largest, float) else f"{row.largest}",
            f"{row.mean:.4f}",
            f"{row.beyond:.3%}" + (" moved" if row.bound is None else ""),
            f"{bound}, {row.bound_beyond:.1%}",
            "yes" if row.ok else "NO",
        ])  # fmt: skip
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in ("torchvision", "torch", "pillow"))
    head = f"{count} images, differences in levels of 0 to 255, of boxes in pixels, on the same parameters; {versions}"
    return "\n".join([head, *(f"left out: {words}" for words in left_out), "", *lines])
