"""Writes the first inputs of the fuzz targets, made by the tools people use: tarfile, numpy, pickle, lmdb, Pillow.

    tests/fuzz/seeds.py CORPUS_FOLDER
"""

from __future__ import annotations

import io
import json
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


def protocol() -> list[bytes]:
    """Messages of both sides, one a line, as JSON."""
    layout = {
        "fields": [{"name": "label", "dtype": "int64", "shape": [], "form": "fixed", "row_bytes": 8, "offset": 0}],
        "batch_size": 2, "key_bytes_max": 8, "valid_offset": 64, "entries_offset": 128, "arena_offset": 192,
        "arena_bytes": 65552, "values_offset": 65792, "values_bytes": 0, "slot_bytes": 131072,
    }  # fmt: skip
    image = {"layout": "nhwc", "max_pixels": 1 << 20, "view": 0, "transforms": [
        {"random_resized_crop": {"size": [16, 16], "scale": [0.08, 1.0], "ratio": [0.75, 1.34]}}, {"random_horizontal_flip": {"p": 0.5}}]}  # fmt: skip
    fields = [
        {"name": "image", "sources": ["jpg"], "kind": {"image": image}},
        {"name": "label", "sources": ["cls"], "kind": "int", "default": [49]},
        {"name": "words", "sources": ["txt"], "kind": {"text": {"max_bytes": 4096}}},
        {"name": "box", "sources": ["json"], "kind": {"boxes": {"of": "image", "format": "xyxy", "normalized": False,
         "within": None, "boxes": "bbox", "labels": "category_id", "extra": ["area"], "leave_out": "iscrowd", "outside": "drop",
         "min_size": 1.0, "min_area": 1.0, "min_visibility": 0.1, "max_boxes": 9}}},
    ]  # fmt: skip
    job = {
        "version": 1, "name": "job", "shards": ["/data/a.tar", "/data/b.tar"], "rules": {}, "fields": fields, "batch_size": 8,
        "order": "global", "seed": 1, "rank": 0, "world_size": 2, "tail": "short", "epoch_length": None, "mix": None,
        "quarantine": None, "drop_missing": ["image"], "on_error": "replace", "error_budget": 0.01, "slots": 4, "ring": "named",
    }  # fmt: skip
    mix = {"parts": [{"shards": 1, "weight": 0.5}, {"shards": 1, "weight": 2.0}], "stop": "all"}
    info = {
        "sample_count": 10, "epoch_positions": 10, "batches_per_epoch": 5, "global_batch": 2, "tail": "pad", "left_out": 0,
        "repeated": 0, "quarantined": 0, "classes": ["a"], "layout": layout, "slot_count": 4, "notices": [], "workers": 1,
        "reader": "pread", "sidecar_pid": 1, "ring_name": "/feedline.job.0.1.2.3",
    }  # fmt: skip
    messages: list[dict[str, object]] = [
        {"type": "hello", "protocol": 1, "version": "0.1.0"},
        {"type": "open", "spec": job, "indices": 5, "weights": None},
        {"type": "open", "spec": {**job, "mix": mix, "epoch_length": 90}, "indices": None, "weights": None},
        {"type": "open", "spec": {**job, "order": {"block": {"block_shards": 2}}, "world_size": 4}, "indices": None, "weights": 3},
        {"type": "open", "spec": {**job, "fields": fields[1:2], "drop_missing": [], "ring": "memfd"}, "indices": None, "weights": None, "quarantine": 9},
        {"type": "seek", "generation": 1, "epoch": 2, "position": 3},
        {"type": "figures"},
        {"type": "welcome", "protocol": 1, "version": "0.1.0", "pid": 2},
        {"type": "indexing", "shards_done": 1, "shards_total": 2, "samples": 3},
        {"type": "opened", "info": info},
        {"type": "spilled", "generation": 1, "sequence": 2, "bytes": 3},
        {"type": "failed", "kind": "config", "message": "words"},
    ]
    return [json.dumps(message).encode() for message in messages]


def boxes() -> list[bytes]:
    """Boxes of an image in the forms that annotations have."""
    objects = [{"bbox": [1, 2.5, 3e1, -4], "category_id": 7, "area": 2.0, "iscrowd": 0}, {"category_id": 1, "bbox": [0, 0, 9, 9]}]
    columns = {"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "category_id": [1, 2], "area": [1, 2], "iscrowd": [False, True]}
    archive = io.BytesIO()
    np.savez(archive, bbox=np.ones((2, 4), np.float32), category_id=np.arange(2), area=np.ones(2), iscrowd=np.zeros(2, bool))
    texts = [objects, columns, {"annotations": objects}, {"annotations": columns}, [[1, 2, 3, 4]], [], [[]]]
    return [json.dumps(text, indent=indent).encode() for text in texts for indent in (None, 1)] + [
        npy(np.ones((3, 4))), npy(np.ones((0, 4), np.int16)), archive.getvalue(), b'[{"bbox":[1e400,NaN,-Infinity,"\\ud800"]}]'
    ]  # fmt: skip


def ring() -> list[bytes]:
    """Words of a batch's record, then bytes of its slot."""
    rng = np.random.default_rng(1)
    sound = np.zeros(16, np.uint32)
    sound[8:] = [2, 1, 0, 20, 10, 10, 30, 0]
    return [sound.tobytes() + rng.integers(0, 256, size, np.uint8).tobytes() for size in (0, 64, 4096)] + [b"\xff" * 200]


def main() -> None:
    """Writes them."""
    corpus = Path(sys.argv[1])
    names = ["a.jpg", "a.cls", "b.jpg", "b.cls", "d/" + "n" * 120 + ".jpg"]
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8))
    tall = Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 3, 3), np.uint8)).resize((27, 90), Image.Resampling.BICUBIC)
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
        + [b"\0\0\xff\xff\0" + saved(noise.convert("L"), "JPEG"), b"\0\0\xff\xff\0" + saved(noise, "JPEG", keep_rgb=True)]
        # Rows of MCUs that are decoded together: whole, and without the first and the last.
        + [
            choice + saved(image, "JPEG", quality=85, subsampling=subsampling, optimize=True, restart_marker_rows=1)
            for choice in (b"\0\0\xff\xff\x80", b"\x20\x40\xb0\xd0\x80")
            for image, subsampling in ((tall, 0), (tall, 2), (tall.convert("L"), 0))
        ],
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
    sample = b'{"t": %d, "gpu_util": 97, "power_mw": 580000, "gpm": {"graphics_util": 97.0, "sm_util": 88.0, "dram_bw_util": NaN}}\n'
    step = b'{"t": %d.5, "wait_s": 0.25, "h2d_s": 0, "step_s": 1, "waiting_s": {"decode": 0.2}, "workers": 4}\n'
    seeds["recording"] = [b"".join(sample % at for at in range(9)), b"".join((sample + step) % (at, at) for at in range(9))]
    seeds.update(protocol=protocol(), boxes=boxes(), ring=ring())
    for target, contents in seeds.items():
        folder = corpus / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            (folder / f"seed-{number:02}").write_bytes(content)


if __name__ == "__main__":
    main()
