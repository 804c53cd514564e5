"""Packs photographs into tar shards and indexes them, so that every contender reads the same bytes in the same way."""

from __future__ import annotations

import importlib.util
import io
import itertools
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

SHARDS = 8

#: One row a sample: which shard, where the picture starts, how long it is, its class.
INDEX_DTYPE = np.dtype([("shard", "u4"), ("offset", "u8"), ("size", "u4"), ("label", "i8")])


def find_photos(folder: Path | None, scratch: Path, count: int) -> tuple[list[Path], str]:
    """JPEG files of `folder`, or generated ones; and where they come from, in words."""
    if folder is not None:
        photos = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        if not photos:
            raise SystemExit(f"error: no JPEG files below {folder}")
        return photos, f"{len(photos)} photographs"
    spec = importlib.util.spec_from_file_location("demo_data", Path(__file__).parents[2] / "tools" / "demo_data.py")
    assert spec is not None and spec.loader is not None, "a path to a .py file has a loader"
    demo_data = importlib.util.module_from_spec(spec)
    # Its worker processes find it under this name.
    sys.modules["demo_data"] = demo_data
    spec.loader.exec_module(demo_data)
    demo_data.write_tree(scratch / "pictures", count, 0)
    photos = sorted((scratch / "pictures").rglob("*.jpg"))
    return photos, f"{len(photos)} generated pictures"


def reencoded(data: bytes) -> bytes:
    """The picture as JPEG of quality 90 with 4:2:0 subsampling."""
    from PIL import Image

    target = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(target, "JPEG", quality=90, subsampling="4:2:0")
    return target.getvalue()


def pack(photos: list[Path], samples: int, reencode: bool, folder: Path) -> str:
    """Writes `samples` samples, repeating the photos, into shards with an index; returns the shards' pattern."""
    contents = [path.read_bytes() for path in photos]
    if reencode:
        contents = [reencoded(data) for data in contents]
    # Neighbours of one shard must not all be one photo.
    cycle = itertools.cycle(enumerate(contents))
    for shard in range(SHARDS):
        with tarfile.open(folder / f"photos-{shard:06}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard, samples, SHARDS):
                place, data = next(cycle)
                for name, content in ((f"{number:08}.jpg", data), (f"{number:08}.cls", b"%d" % (place % 1000))):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    write_index(folder)
    return str(folder / f"photos-{{{0:06}..{SHARDS - 1:06}}}.tar")


def write_index(folder: Path) -> None:
    """Writes the index of all shards of `folder`; reading it back is the other side's whole start-up."""
    rows = []
    for shard in range(SHARDS):
        with tarfile.open(folder / f"photos-{shard:06}.tar") as tar:
            members = list(tar)
            for picture, label in zip(members[::2], members[1::2], strict=True):
                content = tar.extractfile(label)
                assert content is not None, "a label is a plain file"
                rows.append((shard, picture.offset_data, picture.size, int(content.read())))
    np.save(folder / "index.npy", np.array(rows, INDEX_DTYPE))


def optimised(pattern: str) -> str:
    """The pattern of the shards of `pattern` as `feedline optimize` rewrites them."""
    path = Path(pattern)
    return str(path.parent / "optimised" / path.name)


def optimise(pattern: str) -> None:
    """Rewrites the shards without loss, by the command that users have."""
    target = Path(optimised(pattern)).parent
    command = [sys.executable, "-m", "feedline", "optimize", pattern, str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def warm(folder: Path) -> int:
    """Reads every shard once, so that all runs find it in the page cache; returns the bytes of those as they were packed."""
    sizes = {path: len(path.read_bytes()) for path in folder.rglob("*.tar")}
    return sum(size for path, size in sizes.items() if path.parent == folder)
