"""Writes the first inputs of the fuzz targets, made by the tools people use: tarfile, numpy, pickle, lmdb, Pillow.

    tests/fuzz/seeds.py CORPUS_FOLDER
"""

from __future__ import annotations

import io
import pickle
import sys
import tarfile
import tempfile
from pathlib import Path

import lmdb
import msgpack
import numpy as np
from PIL import Image


def tar(form: int, names: list[str]) -> bytes:
    """A tar of members of one byte."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as out:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            member.mtime = 1.5
            out.addfile(member, io.BytesIO(b"1"))
    return target.getvalue()


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    """An image file."""
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()


def npy(array: np.ndarray) -> bytes:
    """An array file."""
    target = io.BytesIO()
    np.save(target, array)
    return target.getvalue()


def database(records: dict[bytes, bytes], inside: bool) -> bytes:
    """The file of a database."""
    with tempfile.TemporaryDirectory() as folder:
        environment = lmdb.open(folder + "/x.mdb", subdir=False, max_dbs=2, map_size=1 << 22)
        with environment.begin(write=True) as transaction:
            where = environment.open_db(b"a", txn=transaction) if inside else None
            for key, value in records.items():
                transaction.put(key, value, db=where)
        environment.close()
        return Path(folder, "x.mdb").read_bytes()


def main() -> None:
    """Writes them."""
    corpus = Path(sys.argv[1])
    names = ["a.jpg", "a.cls", "b.jpg", "b.cls", "d/" + "n" * 120 + ".jpg"]
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8))
    npz = io.BytesIO()
    np.savez_compressed(npz, x=np.arange(20), y=np.ones(3))
    values = [(b"image bytes", 7), {"a": [1, 2.5, None, True]}, [b"x" * 300, "text", -(2**70)]]
    seeds: dict[str, list[bytes]] = {
        "tar": [tar(form, names) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT) if form != tarfile.USTAR_FORMAT]
        + [tar(tarfile.USTAR_FORMAT, names[:4])],
        "lmdb": [
            database({b"%d" % n: bytes([n]) * (n * 700) for n in range(12)}, False),
            database({b"k%03d" % n: b"v" * n for n in range(300)}, True),
        ],
        "npy": [npy(np.arange(6).reshape(2, 3).astype(dtype)) for dtype in ("u1", "<i4", ">f8", "?", "<f2")] + [npz.getvalue()],
        "wrapped": [pickle.dumps(value, protocol) for value in values for protocol in range(6)]
        + [msgpack.packb((b"image", 3)), bytes([8, 3, 16, 2, 24, 4, 34, 24, *range(24), 40, 5])],
        "pattern": [b"s-{000..010}.tar", b"{a,b{1..3}}x", b"*.[!a-c]?\nx.dz"],
        "jpeg": [
            choice + saved(noise, "JPEG", quality=quality, subsampling=subsampling, **options)
            for choice, quality in ((b"\0\0\xff\xff\0", 30), (b"\x50\x40\xb0\x90\0", 90), (b"\0\0\xff\xff\x05", 75))
            for subsampling in (0, 1, 2)
            for options in ({}, {"optimize": True}, {"restart_marker_blocks": 2}, {"restart_marker_rows": 1})
        ]
        + [b"\0\0\xff\xff\0" + saved(noise.convert("L"), "JPEG"), b"\0\0\xff\xff\0" + saved(noise, "JPEG", keep_rgb=True)],
        "image": [
            saved(noise, "JPEG", quality=80, subsampling=2),
            saved(noise, "JPEG", progressive=True),
            saved(noise.convert("CMYK"), "JPEG"),
            saved(noise.convert("L"), "JPEG"),
            saved(noise, "PNG"),
            saved(noise.convert("P"), "PNG"),
            saved(noise, "WEBP"),
            saved(noise, "BMP"),
            saved(noise, "TIFF"),
            saved(noise.convert("P"), "GIF"),
        ],
    }
    for target, contents in seeds.items():
        folder = corpus / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            (folder / f"seed-{number:02}").write_bytes(content)


if __name__ == "__main__":
    main()
