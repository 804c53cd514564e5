"""LMDB databases as py-lmdb writes them: conventions and damage."""

from __future__ import annotations

import io
import pickle
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from databases import IMAGE, PAIR, close_to, epoch, lmdb, logs, photos, told, write  # noqa: F401, fixtures among them
from PIL import Image

import feedline

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
