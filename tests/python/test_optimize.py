"""`feedline optimize` and `feedline convert --optimize`: every decoder shows the same, nothing else changes, nothing is lost."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
from PIL import Image

import feedline

IMAGES = Path(__file__).parent.parent / "data" / "images"
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def start(command: str, *arguments: Any, **options: Any) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "feedline", command, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def run(command: str, *arguments: Any) -> dict[str, Any]:
    """Runs a command to its end; returns its report."""
    out, error = (process := start(command, *arguments, "--json")).communicate(timeout=300)
    assert process.returncode == 0, error.decode()
    return json.loads(out)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def with_steps_of_16_bits(photo: bytes) -> bytes:
    """The same coefficients, whose quantisation steps are written in 16 bits, some over 255."""
    place = photo.index(b"\xff\xdb")
    (length,) = struct.unpack(">H", photo[place + 2 : place + 4])
    content, tables = photo[place + 4 : place + 2 + length], b""
    while content:
        steps = [min(4 * step, 1000) for step in content[1:65]]
        tables += bytes([content[0] | 0x10]) + struct.pack(">64H", *steps)
        content = content[65:]
    return photo[:place] + segment(0xDB, tables) + photo[place + 2 + length :]


def by_cjpeg(*options: str) -> bytes:
    """A photo by libjpeg's own command, for what Pillow cannot write."""
    if shutil.which("cjpeg") is None:
        pytest.skip("cjpeg is not installed")
    bitmap = io.BytesIO()
    Image.open(io.BytesIO(datasets.photo(5, 123, 91))).save(bitmap, "PPM")
    return subprocess.run(["cjpeg", *options], input=bitmap.getvalue(), stdout=subprocess.PIPE, check=True).stdout


EXIF = Image.Exif()
EXIF[0x112] = 6
PROFILE = numpy.random.default_rng(3).integers(0, 256, 150_000, dtype=numpy.uint8).tobytes()


def made() -> dict[str, bytes]:
    """Sound JPEGs of every kind that Pillow can write, or that bytes can be made into."""
    plain = datasets.photo(1, 133, 97, subsampling=2)
    kinds: dict[str, dict[str, Any]] = {
        "444": {"subsampling": 0},
        "422": {"subsampling": 1},
        "420": {"subsampling": 2},
        "best": {"quality": 100, "subsampling": 0},
        "worst": {"quality": 1},
        "grey": {"mode": "L"},
        "cmyk": {"mode": "CMYK"},
        "progressive": {"progressive": True},
        "fitted": {"optimize": True},
        "rgb": {"keep_rgb": True},
        "restart-blocks": {"restart_marker_blocks": 3},
        "restart-rows": {"restart_marker_rows": 2},
        "turned": {"exif": EXIF.tobytes()},
        "profile": {"icc_profile": PROFILE},
        "everything": {"exif": EXIF.tobytes(), "icc_profile": PROFILE, "comment": b"a comment", "dpi": (300, 200)},
    }
    photos = {name: datasets.photo(number, 133, 97, **kind) for number, (name, kind) in enumerate(kinds.items())}
    for width, height in [(1, 1), (8, 8), (9, 7), (16, 17), (17, 16), (31, 33), (250, 3), (3, 250)]:
        for subsampling in range(3):
            name = f"{width}x{height}-{subsampling}"
            photos[name] = datasets.photo(width, width, height, subsampling=subsampling, progressive=subsampling == 1)
    photos["steps-of-16-bits"] = with_steps_of_16_bits(plain)
    photos["behind"] = plain + b"what some phones put behind the image"
    photos["orientation-in-xmp"] = plain[:2] + segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="8"/>') + plain[2:]
    for name in ["440", "ycck", "rgb", "cmyk-no-marker", "progressive", "bad-icc", "orientation"]:
        photos[f"example-{name}"] = (IMAGES / f"{name}.jpg").read_bytes()
    return photos


def left_alone() -> dict[str, tuple[str, bytes]]:
    """JPEGs that stay as they are, and why."""
    plain = datasets.photo(2, 133, 97)
    whole = {"12-bit": "precision", "arithmetic": "arithmetic", "lossless": "other-coding", "hierarchical": "other-coding"}
    return {
        **{name: (reason, (IMAGES / f"{name}.jpg").read_bytes()) for name, reason in whole.items()},
        "two-thirds": ("truncated", plain[: len(plain) * 2 // 3]),
        "no-end": ("truncated", plain[:-2]),
        "bytes-before-a-marker": ("damaged", plain.replace(b"\xff\xdb", bytes(5) + b"\xff\xdb", 1)),
        "early-end": ("damaged", plain[: len(plain) // 2] + b"\xff\xd9" + plain[len(plain) // 2 :]),
        "zeroed": ("damaged", plain[:1500] + bytes(len(plain) - 1502) + plain[-2:]),
        "first-scans": ("incomplete", (IMAGES / "progressive-first-scans.jpg").read_bytes()),
        "pictures": ("several-pictures", plain[:2] + segment(0xE2, b"MPF\0II*\0") + plain[2:]),
        "header-only": ("truncated", plain[:100]),
    }


def shown(photo: bytes) -> tuple[Any, ...]:
    """What Pillow makes of a JPEG: pixels, mode, EXIF with orientation, profile."""
    image = Image.open(io.BytesIO(photo))
    facts = (image.mode, image.size, dict(image.getexif()), image.info.get("icc_profile"), image.info.get("adobe_transform"))
    return (*facts, image.info.get("dpi"), image.info.get("jfif_density"), image.tobytes())


def pack(path: Path, photos: dict[str, bytes], form: int = tarfile.GNU_FORMAT, folder: str = "") -> None:
    """A shard as WebDataset writers make it, each member with a mode, an owner and a time of its own."""
    with tarfile.open(path, "w", format=form) as tar:
        for number, (name, photo) in enumerate(photos.items()):
            for field, body in [("jpg", photo), ("cls", b"%d" % number), ("json", json.dumps({"name": name}).encode())]:
                entry = tarfile.TarInfo(f"{folder}{name}.{field}")
                entry.size, entry.mode, entry.uid, entry.uname = len(body), 0o600 + number % 64, number, f"user{number}"
                entry.mtime = 1_600_000_000 + number + (0.25 if form == tarfile.PAX_FORMAT else 0)
                tar.addfile(entry, io.BytesIO(body))


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        return [(entry, tar.extractfile(entry).read()) for entry in tar]


def facts(entry: tarfile.TarInfo) -> tuple[Any, ...]:
    return (entry.name, entry.mode, entry.mtime, entry.uid, entry.uname, entry.type, entry.pax_headers)


def compare(old: Path, new: Path, reasons: dict[str, str] | None = None) -> int:
    """Checks that nothing but the bytes of sound JPEGs differs, and that these show the same; returns how many differ."""
    changed = 0
    before, after = members(old), members(new)
    assert [facts(entry) for entry, _ in after] == [facts(entry) for entry, _ in before]
    for (entry, photo), (_, optimized) in zip(before, after, strict=True):
        key = Path(entry.name).name.removesuffix(".jpg")
        if not entry.name.endswith(".jpg") or key in (reasons or {}):
            assert optimized == photo, entry.name
            continue
        assert shown(optimized) == shown(photo), entry.name
        changed += optimized != photo
    return changed


@pytest.mark.parametrize("form", FORMATS)
def test_photos_show_the_same_and_damaged_ones_stay(tmp_path, form) -> None:
    sound, odd = made(), left_alone()
    photos = {**sound, **{name: photo for name, (_, photo) in odd.items()}}
    # Names that need extended headers, where the format has them.
    folder = "" if form == "ustar" else "папка/" + "long/" * 40
    pack(tmp_path / "s.tar", photos, FORMATS[form], folder)
    report = run("optimize", tmp_path / "s.tar", tmp_path / "out")
    changed = compare(tmp_path / "s.tar", tmp_path / "out" / "s.tar", {name: why for name, (why, _) in odd.items()})
    assert report["jpegs"] == len(photos) and report["optimized"] == len(sound) and changed >= len(sound) - 2
    found = {}
    for reason, copied in report["copied"].items():
        assert copied["count"] == len(copied["members"])
        found.update({Path(member["name"]).name.removesuffix(".jpg"): reason for member in copied["members"]})
    assert found == {name: reason for name, (reason, _) in odd.items()}


@pytest.mark.parametrize("options", [["-sample", "1x2"], ["-sample", "4x1"], ["-sample", "2x2,1x1,2x1"], ["-grayscale", "-sample", "2x2"]])
def test_other_samplings_show_the_same(tmp_path, options) -> None:
    pack(tmp_path / "s.tar", {"photo": by_cjpeg(*options), "progressive": by_cjpeg(*options, "-progressive")})
    assert run("optimize", tmp_path / "s.tar", tmp_path / "out")["optimized"] == 2
    assert compare(tmp_path / "s.tar", tmp_path / "out" / "s.tar") == 2


@pytest.mark.parametrize("markers", ["needed", "none"])
def test_markers_go_by_choice_and_pixels_stay(tmp_path, markers) -> None:
    photos = made()
    pack(tmp_path / "s.tar", photos)
    all_bytes = run("optimize", tmp_path / "s.tar", tmp_path / "all")["optimized_bytes_after"]
    assert run("optimize", tmp_path / "s.tar", tmp_path / "out", "--markers", markers)["optimized_bytes_after"] < all_bytes
    for entry, photo in members(tmp_path / "out" / "s.tar"):
        name = entry.name.removesuffix(".jpg")
        if not entry.name.endswith(".jpg"):
            continue
        if markers == "needed":
            assert shown(photo) == shown(photos[name]), name
            continue
        image, before = Image.open(io.BytesIO(photo)), Image.open(io.BytesIO(photos[name]))
        assert (image.mode, image.size, image.tobytes()) == (before.mode, before.size, before.tobytes()), name
        assert not image.getexif() and "icc_profile" not in image.info, name


# webdataset leaves its files to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_webdataset_reads_what_was_written(tmp_path) -> None:
    webdataset = pytest.importorskip("webdataset")
    photos = {name.replace(".", "-"): photo for name, photo in made().items()}
    with webdataset.TarWriter(str(tmp_path / "w.tar")) as writer:
        for number, (name, photo) in enumerate(photos.items()):
            writer.write({"__key__": name, "jpg": photo, "cls": number, "json": {"name": name}})
    run("optimize", tmp_path / "w.tar", tmp_path / "out")
    rows = list(webdataset.WebDataset(str(tmp_path / "out" / "w.tar"), shardshuffle=False))
    assert [(row["__key__"], int(row["cls"])) for row in rows] == [(name, number) for number, name in enumerate(photos)]
    for row in rows:
        assert shown(row["jpg"]) == shown(photos[row["__key__"]]), row["__key__"]


def test_a_loader_yields_the_same_pixels(load, tmp_path) -> None:
    pytest.importorskip("torch")
    dataset = datasets.write(tmp_path / "in", 60, 3)
    for number in range(0, 60, 4):
        mode = ["RGB", "L", "CMYK"][number // 4 % 3]
        dataset.photos[number] = datasets.photo(number, 170 + number, 230 - number, mode, progressive=number % 8 == 0)
    for shard, path in enumerate(dataset.shards):
        numbers = range(shard * 20, shard * 20 + 20)
        rows = [(dataset.keys[n], dataset.photos[n], b"%d" % dataset.labels[n]) for n in numbers]
        datasets.write_shard(path, [pair for key, jpg, cls in rows for pair in ((f"{key}.jpg", jpg), (f"{key}.cls", cls))])
    assert run("optimize", tmp_path / "in", tmp_path / "out")["optimized"] == 60
    for transforms in [(feedline.RandomResizedCrop(48), feedline.RandomHorizontalFlip()), (feedline.Resize((96, 96)),)]:
        fields = {"image": feedline.Image(["jpg"], *transforms), "label": feedline.Int("cls")}
        loaders = [load(str(tmp_path / folder), fields=fields, batch_size=20, on_error="raise") for folder in ("in", "out")]
        assert loaders[0].dataset.classes == loaders[1].dataset.classes is not None
        for before, after in zip(*loaders, strict=True):
            assert before.sample_keys == after.sample_keys
            assert (before["image"] == after["image"]).all() and (before["label"] == after["label"]).all()


def several_shards(folder: Path, count: int, photos: int) -> list[Path]:
    """Shards that take a while."""
    folder.mkdir()
    paths = [folder / f"s-{number:03}.tar" for number in range(count)]
    shared = [datasets.photo(number, 500, 375, quality=93) for number in range(photos)]
    for number, path in enumerate(paths):
        pack(path, {f"{number}-{place}": photo for place, photo in enumerate(shared)})
    return paths


def test_killed_at_any_moment_it_goes_on_and_gives_the_same_bytes(tmp_path) -> None:
    several_shards(tmp_path / "in", 6, 30)
    began = time.monotonic()
    run("optimize", tmp_path / "in", tmp_path / "whole", "--workers", 1)
    seconds, whole = time.monotonic() - began, files(tmp_path / "whole")
    run("optimize", tmp_path / "in", tmp_path / "two", "--workers", 2)
    assert files(tmp_path / "two") == whole

    moments, out, killed, published = random.Random(7), tmp_path / "out", 0, set()
    for attempt in range(8):
        if attempt % 4 == 0:
            shutil.rmtree(out, ignore_errors=True)
        process = start("optimize", tmp_path / "in", out, "--workers", 1 + attempt % 2, "--json")
        try:
            process.communicate(timeout=moments.uniform(0.1, seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
        there = {name: data for name, data in files(out).items() if not name.startswith(".")}
        assert all(data == whole[name] for name, data in there.items()), "half a shard under its final name"
        published.add(len(there))
    assert killed >= 3 and len(published) >= 2, (killed, published)
    report = run("optimize", tmp_path / "in", out)
    assert (report["shards"], report["jpegs"]) == (6, 180)
    assert files(out) == whole


def test_a_full_disk_is_an_error_and_leaves_nothing_half_done(tmp_path) -> None:
    paths = several_shards(tmp_path / "in", 3, 6)
    pack(paths[1], {str(number): datasets.photo(number, 500, 375, quality=95) for number in range(40)})
    run("optimize", tmp_path / "in", tmp_path / "whole")
    whole, out = files(tmp_path / "whole"), tmp_path / "out"
    limit = (len(whole["s-000.tar"]) + len(whole["s-001.tar"])) // 2

    def allow_little() -> None:
        # Writes beyond fail, as on a full disk, instead of a signal.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = start("optimize", tmp_path / "in", out, "--json", preexec_fn=allow_little, restore_signals=False)
    report, error = process.communicate(timeout=120)
    assert process.returncode == 1 and not report
    assert b"cannot write" in error and b"s-001.tar" in error and b"File too large" in error, error
    assert {name: data for name, data in files(out).items() if not name.startswith(".")} == {"s-000.tar": whole["s-000.tar"]}
    assert not list(out.glob(".*.partial"))
    assert run("optimize", tmp_path / "in", out)["kept"] == 1
    assert files(out) == whole


def test_too_little_room_is_refused_before_anything_is_written(tmp_path) -> None:
    several_shards(tmp_path / "in", 2, 20)
    out = tmp_path / "out"
    out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", out], capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted")
    try:
        process = start("optimize", tmp_path / "in", out)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 1 and b"2 shards need" in error and b"make" in error, error
        assert files(out) == {}
    finally:
        subprocess.run(["umount", out], check=True)


def test_a_tree_is_optimized_while_it_is_packed(tmp_path) -> None:
    photos = {**made(), **{name: photo for name, (_, photo) in left_alone().items()}}
    for number, (name, photo) in enumerate(photos.items()):
        path = tmp_path / "tree" / f"class{number % 3}" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo)
    report = run("convert", tmp_path / "tree", tmp_path / "out", "--prefix", "t", "--optimize")
    assert report["optimized"]["optimized"] == len(made())
    found = {Path(entry.name).name.removesuffix(".jpg"): body for entry, body in members(tmp_path / "out" / "t-000000.tar")}
    for name, photo in photos.items():
        if name in left_alone():
            assert found[name] == photo, name
        else:
            assert shown(found[name]) == shown(photo), name


@pytest.mark.parametrize("folder", ["small", "large"])
def test_real_photographs(tmp_path, folder) -> None:
    root = os.environ.get("FEEDLINE_PHOTOS")
    if root is None:
        pytest.skip("FEEDLINE_PHOTOS names no folder of real photos")
    photos = {path.stem: path.read_bytes() for path in sorted(Path(root, folder).glob("*.jpg"))}
    pack(tmp_path / "s.tar", photos)
    report = run("optimize", tmp_path / "s.tar", tmp_path / "out")
    print({name: value for name, value in report.items() if name not in ("out", "failed", "notices")})
    assert report["optimized"] == len(photos)
    assert 0.9 < report["optimized_bytes_after"] / report["optimized_bytes_before"] < 1.0
    assert compare(tmp_path / "s.tar", tmp_path / "out" / "s.tar") > 0.9 * len(photos)
