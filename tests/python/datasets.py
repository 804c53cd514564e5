"""Small datasets: tar shards of generated JPEG photos, and what is in them."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy
from PIL import Image


@dataclass(frozen=True)
class Dataset:
    """Shards, and the samples in them in order: key, JPEG bytes, label."""

    pattern: str
    shards: list[Path]
    keys: list[str]
    photos: list[bytes]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.keys)


def photo(seed: int, width: int, height: int, mode: str = "RGB", **save: object) -> bytes:
    """A JPEG with slopes, blobs and some noise, as photos have."""
    random = numpy.random.default_rng(seed)
    coarse = random.integers(0, 256, (max(2, height // 24), max(2, width // 24), 3), dtype=numpy.uint8)
    image = numpy.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=numpy.int16)
    image = (image + random.integers(-6, 7, image.shape)).clip(0, 255).astype(numpy.uint8)
    target = io.BytesIO()
    Image.fromarray(image).convert(mode).save(target, "JPEG", **{"quality": 88, **save})
    return target.getvalue()


def write_shard(path: Path, members: list[tuple[str, bytes]]) -> None:
    """Writes a tar of `members`."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, body in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))


def write(folder: Path, count: int, shard_count: int = 4, damage: dict[int, bytes] | None = None) -> Dataset:
    """A dataset of `count` samples in `shard_count` shards; `damage` replaces the photo of some samples."""
    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(count)
    keys, photos, labels = [], [], []
    for number in range(count):
        width, height = (int(side) for side in random.integers(40, 260, 2))
        keys.append(f"photo{number:05d}")
        photos.append((damage or {}).get(number) or photo(number, width, height))
        labels.append(number % 7)
    shards = []
    for shard in range(shard_count):
        members = []
        for number in range(shard * count // shard_count, (shard + 1) * count // shard_count):
            members.append((f"{keys[number]}.jpg", photos[number]))
            members.append((f"{keys[number]}.cls", f"{labels[number]}\n".encode()))
        shards.append(folder / f"part-{shard:06d}.tar")
        write_shard(shards[-1], members)
    (folder / "classes.json").write_text(json.dumps([f"class {label}" for label in range(7)]))
    pattern = f"{folder}/part-{{000000..{shard_count - 1:06d}}}.tar"
    return Dataset(pattern, shards, keys, photos, labels)
