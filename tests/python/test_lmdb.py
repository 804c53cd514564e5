"""LMDB databases as py-lmdb writes them: conventions, snapshots, writers, damage."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
from PIL import Image

import feedline

lmdb = pytest.importorskip("lmdb")

IMAGE = {"image": feedline.Image(["image"], feedline.Resize((16, 16)))}
PAIR = {**IMAGE, "label": feedline.Int("label")}


def write(path: Path, pairs: Iterable[tuple[bytes, bytes]], name: bytes | None = None, **options: Any) -> Path:
    """A database of `pairs`, written in one commit."""
    options = {"map_size": 1 << 28, "max_dbs": 4, **options}
    with lmdb.open(str(path), **options) as environment:
        database = environment.open_db(name) if name else None
        with environment.begin(write=True) as transaction:
            for key, value in pairs:
                transaction.put(key, value, db=database)
    return path


def photos(count: int) -> list[bytes]:
    return [datasets.photo(number, 40 + number % 9, 30 + number % 7) for number in range(count)]


def pixels(photo: bytes) -> numpy.ndarray[Any, Any]:
    """What Pillow makes of a photo, at 16 x 16."""
    return numpy.asarray(Image.open(io.BytesIO(photo)).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))


def close_to(found: Any, photo: bytes) -> bool:
    found = numpy.asarray(found).transpose(1, 2, 0).astype(int)
    return bool((abs(found - pixels(photo)) <= 2).all())


@pytest.fixture
def epoch(load: Callable[..., feedline.Loader]) -> Callable[..., list[tuple[str, Any, int | None]]]:
    """One epoch in order: key, image, label."""

    def run(path: Path | str | list[str], fields: Any = IMAGE, **options: Any) -> list[tuple[str, Any, int | None]]:
        loader = load(str(path) if isinstance(path, Path) else path, fields=fields, shuffle=False, batch_size=4, **options)
        rows = []
        for batch in loader:
            labels = batch["label"].tolist() if "label" in fields else [None] * len(batch.sample_keys)
            images = batch["image"].clone() if "image" in fields else [None] * len(batch.sample_keys)
            rows += list(zip(batch.sample_keys, images, labels, strict=True))
        return rows

    return run


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "feedline")


# Conventions.


def test_plain_keys_in_natural_order(epoch, tmp_path, caplog) -> None:
    made = photos(12)
    path = write(tmp_path / "d", [(str(number).encode(), photo) for number, photo in enumerate(made)])
    rows = epoch(path)
    assert [key for key, _, _ in rows] == [str(number) for number in range(12)]
    assert all(close_to(image, photo) for (_, image, _), photo in zip(rows, made, strict=True))
    assert 'profile="plain"' in told(caplog) and "keys are numbers, by value" in told(caplog)
    in_bytes = [key for key, _, _ in epoch(path, key_order="bytes")]
    assert in_bytes == sorted(str(number) for number in range(12))


def test_spellings_are_one_database(epoch, tmp_path) -> None:
    made = photos(3)
    pairs = [(b"a%d" % number, photo) for number, photo in enumerate(made)]
    folder = write(tmp_path / "d", pairs)
    single = write(tmp_path / "n.lmdb", pairs, subdir=False)
    root = tmp_path / "root"
    shutil.copytree(folder, root / "one")
    shutil.copytree(folder, root / ".ipynb_checkpoints")
    for path in (folder, folder / "data.mdb", single, root, str(root / "*")):
        assert [key for key, _, _ in epoch(path)] == ["a0", "a1", "a2"], path


def test_text_recognition(epoch, tmp_path, caplog) -> None:
    made = photos(3)
    pairs = [(b"image-%09d" % number, photo) for number, photo in enumerate(made, 1)]
    pairs += [(b"label-%09d" % number, b"%d" % number) for number in range(1, 4)]
    pairs += [(b"image-000000009", made[0]), (b"num-samples", b"4")]
    rows = epoch(write(tmp_path / "d", pairs), PAIR)
    assert [(key, label) for key, _, label in rows] == [(f"{number:09d}", number) for number in (1, 2, 3)]
    words = told(caplog)
    assert 'profile="text-recognition"' in words
    assert "num-samples says 4, 3 are there" in words
    assert "left out: 1" in words and "4 to 8" not in words and "4 to 4" in words


def test_text_recognition_with_two_keys_for_one_number(epoch, tmp_path, caplog) -> None:
    made = photos(3)
    pairs = [(b"image-000000001", made[0]), (b"image-1", made[1]), (b"label-000000001", b"7"), (b"num-samples", b"1")]
    rows = epoch(write(tmp_path / "d", pairs), PAIR)
    assert [(key, label) for key, _, label in rows] == [("000000001", 7)] and close_to(rows[0][1], made[0])
    assert "second members of a sample for one field, one of the two not used: 1" in told(caplog)
    assert "image-1" in told(caplog)


def test_text_recognition_bad_image(load, tmp_path) -> None:
    made = photos(3)
    pairs = [(b"image-%09d" % number, photo) for number, photo in enumerate(made, 1)]
    pairs[1] = (pairs[1][0], bytes(range(10)))
    pairs += [(b"label-%09d" % number, b"7") for number in range(1, 4)] + [(b"num-samples", b"3")]
    loader = load(str(write(tmp_path / "d", pairs)), fields=PAIR, shuffle=False, on_error="replace", error_budget=0.5)
    # Of three samples, its substitute may be itself.
    faults = {(fault.key, fault.fault_class) for batch in loader for fault in batch.report}
    assert faults == {("000000002", "corrupt")}


def test_super_resolution(epoch, tmp_path, caplog) -> None:
    made = photos(4)
    path = write(tmp_path / "d", [(key, photo) for key, photo in zip((b"b", b"a", b"c", b"x"), made, strict=True)])
    # The first photo, b, is 40 pixels wide and 30 high; each of the others is one more.
    (path / "meta_info.txt").write_text("c.png (32,42,3) 1\nb.png (30,40,3) 1\na.png (30,40,3) 1\nd.png (1,1,3) 1\n")
    rows = epoch(path)
    assert [key for key, _, _ in rows] == ["c", "b", "a"]
    assert close_to(rows[1][1], made[0])
    words = told(caplog)
    assert "does not list, left out: 1" in words and "without a key, or the second for one: 1" in words
    assert "(was it made of other images?): 1" in words and "a is 41x31, listed as 40x30" in words


def test_datum(epoch, tmp_path) -> None:
    rng = numpy.random.default_rng(3)
    rgb = rng.integers(0, 256, (16, 16, 3), dtype=numpy.uint8)
    bgr_planes = rgb[:, :, ::-1].transpose(2, 0, 1).tobytes()
    raw = bytes([0x08, 3, 0x10, 16, 0x18, 16, 0x22]) + _varint(len(bgr_planes)) + bgr_planes + bytes([0x28, 5])
    png = io.BytesIO()
    Image.fromarray(rgb).save(png, "PNG")
    encoded = bytes([0x22]) + _varint(len(png.getvalue())) + png.getvalue() + bytes([0x28, 6, 0x38, 1])
    rows = epoch(write(tmp_path / "d", [(b"00000001", raw), (b"00000002", encoded)]), PAIR)
    assert [(key, label) for key, _, label in rows] == [("00000001", 5), ("00000002", 6)]
    for _, image, _ in rows:
        assert (numpy.asarray(image).transpose(1, 2, 0) == rgb).all()


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


@pytest.mark.parametrize("writer", ["pickle0", "pickle2", "pickle4", "pickle5", "msgpack"])
def test_folder(epoch, tmp_path, caplog, writer: str) -> None:
    if writer == "msgpack":
        dump = pytest.importorskip("msgpack").packb
    else:
        protocol = int(writer[-1])

        def dump(value: object) -> bytes:
            return pickle.dumps(value, protocol)

    made = photos(11)
    pairs = [(str(number).encode(), dump((photo, number % 3))) for number, photo in enumerate(made)]
    pairs += [(b"__keys__", dump([key for key, _ in pairs])), (b"__len__", dump(11))]
    rows = epoch(write(tmp_path / "d", pairs), PAIR)
    assert [(key, label) for key, _, label in rows] == [(str(number), number % 3) for number in range(11)]
    assert all(close_to(image, photo) for (_, image, _), photo in zip(rows, made, strict=True))
    assert 'profile="folder"' in told(caplog) and "0 = image" in told(caplog) and "says" not in told(caplog)


class Evil:
    """A pickle that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_mixed_and_hostile_values(load, tmp_path) -> None:
    made, victim = photos(4), tmp_path / "victim"
    values = [
        pickle.dumps((made[0], 1)),
        pickle.dumps((Evil(victim), 1)),
        made[1],
        b"\xff\xff\xff\xff\x10\0\0\0",
        pickle.dumps((made[2], numpy.int64(2))),
        pickle.dumps((made[3], 3)),
    ]
    path = write(tmp_path / "d", [(str(number).encode(), value) for number, value in enumerate(values)])
    options = {"profile": "folder", "fields": PAIR, "shuffle": False, "on_error": "replace", "error_budget": 1.0}
    faults = {fault.key: fault for batch in load(str(path), **options) for fault in batch.report}
    assert sorted(faults) == ["1", "2", "3", "4"]
    assert {fault.fault_class for fault in faults.values()} == {"wrong-wrapper"}
    assert "open" in faults["1"].message and "pickles are never run" in faults["1"].message
    assert "plain image" in faults["2"].message and "pyarrow" in faults["3"].message
    assert "numpy" in faults["4"].message
    assert not victim.exists()


def test_length_keys(epoch, tmp_path, caplog) -> None:
    made = photos(3)
    flat = write(tmp_path / "flat", [(str(n).encode(), photo) for n, photo in enumerate(made)] + [(b"length", b"4")])
    assert [key for key, _, _ in epoch(flat)] == ["0", "1", "2"]
    assert 'profile="length-keys"' in told(caplog) and "length says 4, 3 are there" in told(caplog)
    pairs = [(b"%d-%05d" % (size, n), photo) for size in (8, 128) for n, photo in enumerate(made)]
    sized = write(tmp_path / "sized", [*pairs, (b"length", b"3")])
    fields = {"image": feedline.Image(["128"], feedline.Resize((16, 16)))}
    assert [key for key, _, _ in epoch(sized, fields)] == ["00000", "00001", "00002"]


def test_open_catalyst_is_refused(load, tmp_path) -> None:
    value = b"\x80\x04\x8c\x19torch_geometric.data.data\x94\x8c\x04Data\x94\x93\x94."
    path = write(tmp_path / "d", [(b"0", value), (b"length", pickle.dumps(1))])
    with pytest.raises(ValueError, match="Open Catalyst.*npy members"):
        len(load(str(path), fields=IMAGE))


def test_databases_inside(epoch, load, tmp_path, caplog) -> None:
    made = photos(4)
    path = write(tmp_path / "d", [(b"a", made[0])], name=b"first")
    assert [key for key, _, _ in epoch(path)] == ["a"]
    write(path, [(b"b", made[1]), (b"c", made[2])], name=b"second")
    with pytest.raises(ValueError, match="choose one with database=: first, second"):
        len(load(str(path), fields=IMAGE))
    assert [key for key, _, _ in epoch(path, database="second")] == ["b", "c"]
    with pytest.raises(ValueError, match="no database \"third\""):
        len(load(str(path), fields=IMAGE, database="third"))
    write(path, [(b"own", made[3])])
    assert [key for key, _, _ in epoch(path)] == ["own"]
    assert "databases inside a database, not read" in told(caplog)


def test_arguments(tmp_path) -> None:
    path = write(tmp_path / "d", [(b"a", photos(1)[0])])
    with pytest.raises(ValueError, match="pass profile='folder'"):
        feedline.Loader(str(path), fields=IMAGE, layout="folder")
    with pytest.raises(ValueError, match="profile must be"):
        feedline.Loader(str(path), fields=IMAGE, profile="foldr")
    with pytest.raises(ValueError, match="key_order must be"):
        feedline.Loader(str(path), fields=IMAGE, key_order="random")
    with pytest.raises(TypeError, match="database must be"):
        feedline.Loader(str(path), fields=IMAGE, database=3)


# What is no sound database.


def test_empty_files(load, tmp_path) -> None:
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "data.mdb").touch()
    for path in (tmp_path / "z", tmp_path / "z" / "data.mdb"):
        with pytest.raises(feedline.LoaderError, match="empty LMDB file"):
            len(load(str(path), fields=IMAGE))
    with lmdb.open(str(tmp_path / "none")):
        pass
    with pytest.raises(ValueError, match="not one sample"):
        len(load(str(tmp_path / "none"), fields=IMAGE))


def test_another_version(load, tmp_path) -> None:
    path = write(tmp_path / "d", [(b"a", photos(1)[0])])
    file = path / "data.mdb"
    damaged = bytearray(file.read_bytes())
    for page in (0, 4096):
        damaged[page + 20 : page + 24] = struct.pack("<I", 2)
    file.write_bytes(damaged)
    with pytest.raises(feedline.LoaderError, match="version 2, this program reads 1"):
        len(load(str(path), fields=IMAGE))


def test_random_damage_is_an_error_or_harmless(serve, load, tmp_path) -> None:
    values = [(b"key-%05d" % number, bytes([number % 256]) * (number % 40)) for number in range(2_000)]
    sound = (write(tmp_path / "d", values) / "data.mdb").read_bytes()
    sidecar = serve("--workers", "1")
    draw, outcomes = random.Random(5), {"sound": 0, "refused": 0}
    fields = {"value": feedline.Int("value")}
    for number in range(60):
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(damaged))
            damaged[at // 4096 * 4096 + at % 64 if number % 2 else at] = draw.randrange(256)
        path = tmp_path / f"{number}.lmdb"
        path.write_bytes(damaged)
        try:
            outcomes["sound"] += len(load(str(path), fields=fields, sidecar=sidecar.socket, batch_size=2_000))
        except (feedline.LoaderError, ValueError, OSError):
            outcomes["refused"] += 1
        assert sidecar.process.poll() is None, "the sidecar lives"
    assert outcomes["sound"] > 5 and outcomes["refused"] > 5, outcomes


# Snapshots.

WRITER = """
import lmdb, sys
with lmdb.open(sys.argv[1], map_size=1 << 28, lock=sys.argv[2] == "lock") as environment:
    print("open", flush=True)
    for line in sys.stdin:
        number = int(line)
        with environment.begin(write=True) as transaction:
            for key in range(40):
                transaction.put(b"%03d" % key, b"%d" % (1000 * number + key) * 300)
        print(number, flush=True)
"""


class Writer:
    """A process that writes every value of a database anew when it is told a number."""

    def __init__(self, path: Path, lock: bool) -> None:
        command = [sys.executable, "-c", WRITER, str(path), "lock" if lock else "none"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "open"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def commit(self, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        assert self._line() == str(number)

    def close(self) -> None:
        self.process.communicate()


def digits(count: int, number: int) -> list[tuple[bytes, bytes]]:
    return [(b"%03d" % key, (b"%d" % (number + key)).rjust(600)) for key in range(count)]


VALUES = {"value": feedline.Int("value")}


def test_a_locked_snapshot_stays_exact(load, tmp_path, caplog) -> None:
    path = write(tmp_path / "d", [(key, value.lstrip()) for key, value in digits(40, 0)])
    loader = load(str(path), fields=VALUES, shuffle=False, batch_size=2, slots=4)
    batches = iter(loader)
    seen = next(batches)["value"].tolist()
    writer = Writer(path, lock=True)
    for number in range(1, 9):
        writer.commit(number)
    seen += [label for batch in batches for label in batch["value"].tolist()]
    writer.close()
    assert seen == list(range(40))
    assert "without a lock" not in told(caplog)


@pytest.mark.parametrize(
    ("has_lock", "reason"),
    [(True, "its lock file may not be written"), (False, "there is none, and the database is another user's")],
)
def test_a_change_without_a_lock_ends_the_stream(load, tmp_path, has_lock: bool, reason: str) -> None:
    path = write(tmp_path / "d", [(key, value.lstrip()) for key, value in digits(4_000, 0)])
    if not has_lock:
        (path / "lock.mdb").unlink()
    path.chmod(0o555)
    (path / "data.mdb").chmod(0o444)
    with tempfile.TemporaryDirectory() as place, _foreign_sidecar(path, Path(place)) as socket:
        loader = load(str(path), fields=VALUES, shuffle=False, batch_size=2, slots=4, sidecar=socket)
        batches = iter(loader)
        assert next(batches)["value"].tolist() == [0, 1]
        assert any("read without a lock, because" in notice and reason in notice for notice in _notices(loader))
        writer = Writer(path, lock=False)
        writer.commit(1)
        words = r"changed while it was read: transaction \d+ was opened, now there is \d+"
        with pytest.raises(feedline.LoaderError, match=words):
            for _ in batches:
                pass
        writer.close()


def _notices(loader: feedline.Loader) -> list[str]:
    return loader._known()["notices"]


def _without_rights(folder: Path) -> list[str]:
    """Starts a program that may write only what it owns; `folder` becomes another user's."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root, who gives files away, and setpriv")
    for path in (folder, *folder.iterdir()):
        os.chown(path, 65534, 65534)
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search,-fowner,-chown", "--inh-caps=-all", "--"]


@contextmanager
def _foreign_sidecar(folder: Path, place: Path) -> Iterator[str]:
    """A sidecar that may not write the database in `folder`."""
    socket = str(place / "s")
    command = [*_without_rights(folder), sys.executable, "-m", "feedline", "serve", "--json", "--socket", socket, "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "FEEDLINE_CACHE": str(place / "cache")})
    assert process.stdout is not None
    assert process.stdout.readline(), "the sidecar starts"
    try:
        yield socket
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("fits", [True, False])
def test_a_small_address_space(tmp_path, fits: bool) -> None:
    path = write(tmp_path / "d", [(b"%d" % n, b"%d" % n + b" " * 1_000_000) for n in range(100)])
    if not fits:
        # A file of 3 GiB, most of it a hole.
        pages = 3 << 18
        with (path / "data.mdb").open("r+b") as file:
            file.truncate(pages * 4096)
            for meta in (0, 4096):
                file.seek(meta + 136)
                file.write(struct.pack("<Q", pages - 1))
    code = f"""
import feedline, logging
logging.basicConfig(level=logging.INFO)
loader = feedline.Loader({str(path)!r}, batch_size=4, fields={{"value": feedline.Int("value")}}, shuffle=False)
print(len(loader.dataset))
print(sum(batch['value'].sum() for batch in loader))
"""
    limit = 2_000_000 << 10

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    environment = {**os.environ, "FEEDLINE_TENSORS": "numpy", "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=limited, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100", "4950"]
    assert ("read without a lock, because this process may not map as much memory" in done.stderr) != fits


def test_a_huge_map(epoch, tmp_path) -> None:
    path = write(tmp_path / "d", [(b"1", photos(1)[0])], map_size=10**12)
    assert [key for key, _, _ in epoch(path)] == ["1"]


def test_killed_readers_are_cleared(epoch, tmp_path, caplog) -> None:
    path = write(tmp_path / "d", [(b"1", photos(1)[0])])
    reader = "import lmdb, os, sys\nt = lmdb.open(sys.argv[1]).begin()\nos.kill(os.getpid(), 9)"
    held = lmdb.open(str(path))
    with held.begin():
        killed = [subprocess.Popen([sys.executable, "-c", reader, str(path)]) for _ in range(130)]
        assert [one.wait() for one in killed].count(-signal.SIGKILL) > 100
        assert [key for key, _, _ in epoch(path)] == ["1"]
    assert "without a lock" not in told(caplog)
    held.close()


def test_values_are_not_touched_by_the_index(load, tmp_path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    path = write(tmp_path / "d", [(b"%06d" % n, b"%d" % n + b" " * 100_000) for n in range(500)])
    trace = tmp_path / "trace"
    code = f"""
import feedline
print(len(feedline.Loader({str(path)!r}, fields={{"value": feedline.Int("value")}})))
"""
    command = [strace, "-f", "-y", "-e", "trace=pread64,preadv,read", "-o", str(trace), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "FEEDLINE_TENSORS": "numpy"}, timeout=200)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    read = sum(
        int(line.rsplit("=", 1)[1]) for line in trace.read_text().splitlines()
        if "data.mdb>" in line and line.rsplit("=", 1)[1].strip().isdigit()
    )  # fmt: skip
    assert 0 < read < (path / "data.mdb").stat().st_size / 100


# Going on after an interruption.


def interrupted(loader: feedline.Loader, batches: int) -> dict[str, Any]:
    """The state after some batches, as a checkpoint keeps it."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    del iterator
    loader.close()
    return state


def values_of(loader: feedline.Loader) -> list[int]:
    return [value for batch in loader for value in batch["value"].tolist()]


def test_a_resume_knows_its_snapshot(load, tmp_path, caplog) -> None:
    path = write(tmp_path / "d", digits(40, 0))
    options = {"fields": VALUES, "shuffle": True, "batch_size": 4}
    whole = values_of(load(str(path), **options))
    state = interrupted(load(str(path), **options), 3)
    (database,) = state["databases"]
    with lmdb.open(str(path)) as environment:
        assert database["transaction"] == environment.info()["last_txnid"]
    assert state["positions"] == 40

    def resumed(place: Path = path) -> list[int]:
        caplog.clear()
        loader = load(str(place), **options)
        loader.load_state_dict(state)
        # What is not known yet is kept.
        assert loader.state_dict() == state
        return values_of(loader)

    assert resumed() == whole[12:]
    assert "transaction" not in told(caplog)
    # Values alone: the order goes on, and the change is named.
    write(path, digits(40, 1000))
    assert resumed() == [value + 1000 for value in whole[12:]]
    words = f"{path}/data.mdb: this state was taken of transaction {database['transaction']}, now there is"
    assert words in told(caplog) and "values may have changed" in told(caplog)
    # A copy has its keys, in other pages.
    (tmp_path / "copy").mkdir()
    with lmdb.open(str(path)) as environment:
        environment.copy(str(tmp_path / "copy"), compact=True)
    assert resumed(tmp_path / "copy") == [value + 1000 for value in whole[12:]]
    # Another key, or one less: the same position is another sample.
    write(path, [(b"0005", b"7")])
    with pytest.raises(ValueError, match="with other keys or in another order, so the same position is another sample"):
        resumed()
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"0005")
    assert resumed() == [value + 1000 for value in whole[12:]]


def test_a_resume_counts_positions(load, tmp_path) -> None:
    shard = tmp_path / "s.tar"
    datasets.write_shard(shard, [(f"{number}.value", b"%d" % number) for number in range(20)])
    state = interrupted(load(shard, fields=VALUES, batch_size=4), 2)
    datasets.write_shard(shard, [(f"{number}.value", b"%d" % number) for number in range(21)])
    loader = load(shard, fields=VALUES, batch_size=4)
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(ValueError, match="an epoch of 20 positions, the loader has 21"):
            iter(loader)
    old = {name: state[name] for name in ("version", "epoch", "position", "seed", "order", "mix", "quarantine")}
    loader.load_state_dict(old)
    assert len(values_of(loader)) == 13, "a state that does not say is taken at its word"


# The trainer's side.


def test_the_trainer_holds_nothing_of_a_database(load, tmp_path) -> None:
    path = write(tmp_path / "d", digits(40, 0))
    loader = load(str(path), fields=VALUES, shuffle=False, batch_size=4)
    iterator = iter(loader)
    next(iterator)
    open_files = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
    maps = Path("/proc/self/maps").read_text()
    assert str(path) not in maps and not any(str(path) in target for target in open_files)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_open_their_own_stream(script, tmp_path, method: str) -> None:
    path = write(tmp_path / "d", digits(40, 0))
    # A spawned child imports the parent's main module, which must be a file.
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing, feedline

def child(loader, answer):
    answer.put([int(value) for batch in loader for value in batch["value"]])

if __name__ == "__main__":
    loader = feedline.Loader({str(path)!r}, fields={{"value": feedline.Int("value")}}, batch_size=4, shuffle=False, timeout=60)
    first = next(iter(loader))
    context = multiprocessing.get_context({method!r})
    answer = context.Queue()
    process = context.Process(target=child, args=(loader, answer))
    process.start()
    found = answer.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0 and found == list(range(40)), (process.exitcode, found)
    assert [int(value) for batch in loader for value in batch["value"]] == list(range(40))
""")
    script("import runpy; runpy.run_path(sys.argv[1], run_name='__main__')" if method == "fork" else
           "import subprocess; subprocess.run([sys.executable, sys.argv[1]], check=True)", str(program)).finish()  # fmt: skip


def test_a_value_is_read_by_one_request(load, tmp_path) -> None:
    """Over all its overflow pages, and without a touch of any other."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    path = write(tmp_path / "d", [(b"%03d" % n, b"%d" % n + b" " * 150_000) for n in range(60)])
    len(load(str(path), fields=VALUES))
    trace, place = tmp_path / "trace", tempfile.mkdtemp(prefix="feedline-")
    socket = f"{place}/s"
    serve = [sys.executable, "-m", "feedline", "serve", "--json", "--socket", socket, "--workers", "1", "--reader", "pread"]
    command = [strace, "-f", "-y", "-e", "trace=pread64,preadv,preadv2", "-o", str(trace), *serve]
    # strace goes with what it traces.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        if not process.stdout.readline():
            pytest.skip(f"strace may not trace here: {process.stderr.read()!r}")
        assert sorted(values_of(load(str(path), fields=VALUES, batch_size=4, sidecar=socket))) == list(range(60))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        shutil.rmtree(place)
    # What another thread interrupted is told in two lines.
    lengths, unfinished = [], set()
    for line in trace.read_text().splitlines():
        thread = line.split()[0]
        if "data.mdb>" in line and "<unfinished" in line:
            unfinished.add(thread)
        elif "data.mdb>" in line or ("resumed>" in line and thread in unfinished):
            unfinished.discard(thread)
            length = line.rsplit("=", 1)[1].strip()
            lengths += [int(length)] if length.isdigit() else []
    values = [length for length in lengths if length > 100_000]
    # The next epoch's first batches are read ahead.
    assert len(values) >= 60 and all(150_000 <= length < 150_000 + 3 * 4096 for length in values), sorted(set(values))
    assert sum(lengths) - sum(values) < 100 * 4096, "little else is read"
