"""Fields beyond images, end to end: texts, bytes, JSON, arrays, and what becomes of missing ones and of memory."""

from __future__ import annotations

import gc
import io
import json
import logging
import math
import pickle
from typing import Any

import datasets
import numpy
import pytest

import feedline

COUNT = 37


def npy(array: numpy.ndarray, version: tuple[int, int] | None = None) -> bytes:
    target = io.BytesIO()
    numpy.lib.format.write_array(target, array, version=version)
    return target.getvalue()


def npz(compressed: bool = True, **arrays: numpy.ndarray) -> bytes:
    target = io.BytesIO()
    (numpy.savez_compressed if compressed else numpy.savez)(target, **arrays)
    return target.getvalue()


def text(number: int) -> str:
    return "" if number % 5 == 0 else f"caption {number} – Bäume\n" * (number % 7)


def values(number: int) -> bytes:
    return numpy.random.default_rng(number).bytes(number * 37 % 400)


def ragged_array(number: int) -> numpy.ndarray:
    shape = [(), (number,), (0, 3), (2, number % 4 + 1, 3)][number % 4]
    return numpy.random.default_rng(number).standard_normal(shape).astype("float32")


def fixed_array(number: int) -> numpy.ndarray:
    array = (numpy.arange(12, dtype="int32") * number).reshape(3, 4)
    return [array, numpy.asfortranarray(array), array.astype(">i4"), numpy.asfortranarray(array.astype(">i4"))][number % 4]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("values")
    members = []
    for number in range(COUNT):
        key = f"s{number:03d}"
        members += [
            (f"{key}.txt", text(number).encode()),
            (f"{key}.bin", values(number)),
            (f"{key}.json", json.dumps({"id": number, "nan": math.nan, "list": [[], {}]}).encode()),
            (f"{key}.npy", npy(ragged_array(number), [(1, 0), (2, 0), (3, 0)][number % 3])),
            (f"{key}.fixed.npy", npy(fixed_array(number))),
            (f"{key}.npz", npz(number % 2 == 0, x=fixed_array(number), y=ragged_array(number))),
        ]
        if number % 3:
            members += [(f"{key}.cls", b"%d" % number), (f"{key}.rare", b"r%d" % number), (f"{key}.rare.json", b"[]")]
    datasets.write_shard(folder / "a.tar", members)
    return str(folder / "a.tar")


FIELDS: dict[str, feedline.fields.Field] = {
    "text": feedline.Text("txt"),
    "list": feedline.Bytes("bin"),
    "ragged": feedline.Bytes("bin", as_="ragged"),
    "json": feedline.Json("json"),
    "raw": feedline.Json("json", parse=False),
    "arrays": feedline.Array("npy", shape=None, dtype="float32"),
    "fixed": feedline.Array("fixed.npy", shape=(3, 4), dtype="int32"),
    "x": feedline.Array("npz", member="x", shape=(3, 4), dtype="int32"),
    "y": feedline.Array("npz", member="y.npy", shape=None, dtype="float32"),
    "label": feedline.Int("cls", default=-1),
    "rare": feedline.Text("rare", default="–"),
    "score": feedline.Float("cls", default=math.nan),
    "note": feedline.Json("rare.json", default={"a": [1]}),
}


def as_numpy(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def check(batch: feedline.Batch) -> None:
    numbers = [int(key[1:]) for key in batch.sample_keys]
    assert batch["text"] == [text(number) for number in numbers]
    assert batch["list"] == [values(number) for number in numbers]
    chars, offsets = (as_numpy(part) for part in batch["ragged"])
    assert (chars.dtype, offsets.dtype, offsets.shape) == ("uint8", "int64", (len(numbers) + 1,))
    assert [chars[a:b].tobytes() for a, b in zip(offsets, offsets[1:], strict=False)] == batch["list"]
    assert [row["id"] for row in batch["json"]] == numbers
    assert math.isnan(batch["json"][-1]["nan"])
    assert [json.loads(row)["id"] for row in batch["raw"]] == numbers
    for name in ("arrays", "y"):
        for number, array in zip(numbers, batch[name], strict=True):
            expected = ragged_array(number)
            assert as_numpy(array).shape == expected.shape
            assert as_numpy(array).tobytes() == expected.tobytes()
    for name in ("fixed", "x"):
        assert as_numpy(batch[name]).dtype == numpy.int32
        assert (as_numpy(batch[name]) == numpy.stack([fixed_array(number) for number in numbers])).all()
    assert as_numpy(batch["label"]).tolist() == [number if number % 3 else -1 for number in numbers]
    assert batch["rare"] == [f"r{number}" if number % 3 else "–" for number in numbers]
    assert batch["note"] == [[] if number % 3 else {"a": [1]} for number in numbers]
    assert [math.isnan(score) for score in as_numpy(batch["score"])] == [number % 3 == 0 for number in numbers]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": False}, {"zero_copy": "copy"}])
def test_every_row_has_its_own_values(load, shards, monkeypatch, kind, options) -> None:
    monkeypatch.setenv("FEEDLINE_TENSORS", kind)
    loader = load(shards, fields=FIELDS, **options)
    for _ in range(2):
        keys = []
        for batch in loader:
            check(batch)
            keys += batch.sample_keys
            if kind == "torch":
                assert type(batch["fixed"]).__module__ == type(batch["arrays"][0]).__module__ == "torch"
        assert sorted(keys) == [f"s{number:03d}" for number in range(COUNT)]


def test_values_spill_and_are_whole(load, tmp_path, caplog) -> None:
    """Few samples are large and lie together: the room that the lengths suggest is too small for their batches."""
    caplog.set_level(logging.INFO, "feedline")  # So that epochs end with a question to the sidecar, spills in between.
    large = {*range(7), *range(150, 157)}
    blobs = [numpy.random.default_rng(number).bytes(300_000 if number in large else 10) for number in range(800)]
    members = [(f"{number:04d}.bin", blob) for number, blob in enumerate(blobs)]
    datasets.write_shard(tmp_path / "a.tar", members)
    fields = {"blob": feedline.Bytes("bin"), "same": feedline.Bytes("bin", as_="ragged")}
    loader = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False, batch_size=8)

    def check_epoch() -> None:
        for number, batch in enumerate(loader):
            assert batch["blob"] == blobs[number * 8 : number * 8 + 8]
            assert as_numpy(batch["same"][0]).tobytes() == b"".join(batch["blob"])
            # Of the second cluster, two rows still have room in batch 18, and five in batch 19 have not.
            assert (0 < batch.spilled_bytes < 2 * 7 * 300_000) == (number in (0, 19))

    check_epoch()
    check_epoch()
    # Left early: what has spilled for batches that nobody takes is let go of.
    for _ in range(3):
        copied = pickle.loads(pickle.dumps(next(iter(loader))))
        assert copied["blob"] == blobs[:8] and copied.spilled_bytes > 0
        iterator = iter(loader)
        for _ in range(12):
            next(iterator)
        del iterator
    check_epoch()
    assert sum("batches" in record.message for record in caplog.records) >= 3


def test_arrays_in_a_spill_are_views_that_live_on(load, tmp_path) -> None:
    arrays = [numpy.full(60_000 if 8 <= number < 16 else 4, number, "int64") for number in range(400)]
    datasets.write_shard(tmp_path / "a.tar", [(f"{number:04d}.npy", npy(array)) for number, array in enumerate(arrays)])
    fields = {"array": feedline.Array("npy", shape=None, dtype="int64")}
    loader = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False)
    batches = iter(loader)
    next(batches)
    large = next(batches)
    assert large.spilled_bytes > 0
    kept = large["array"]
    del large
    for _ in batches:
        gc.collect()
    assert [as_numpy(array).tolist() for array in kept] == [array.tolist() for array in arrays[8:16]]
    kept[0][0] = 77  # In place, as on any tensor.
    assert as_numpy(kept[0])[0] == 77


def held(loader: feedline.Loader, keep: str) -> bool:
    """Whether `keep` of a batch holds its slot: then strict loaders run out of slots."""
    kept = []
    try:
        for batch in loader:
            kept.append(batch[keep])
            del batch
    except feedline.SlotsHeldError:
        return True
    return False


def test_kept_texts_hold_no_slot_and_kept_arrays_do(load, tmp_path) -> None:
    members = []
    for number in range(80):
        members += [(f"{number:03d}.txt", b"words"), (f"{number:03d}.npy", npy(numpy.zeros(5_000 + number, "float32")))]
    datasets.write_shard(tmp_path / "a.tar", members)
    fields = {
        "text": feedline.Text("txt"), "bytes": feedline.Bytes("npy"), "ragged": feedline.Bytes("npy", as_="ragged"),
        "arrays": feedline.Array("npy", shape=None, dtype="float32"),
    }  # fmt: skip
    loader = load(str(tmp_path / "a.tar"), fields=fields, zero_copy="strict", slots=4)
    assert [name for name in fields if held(loader, name)] == ["arrays"]


def test_batches_pickle_move_and_describe_themselves(load, shards) -> None:
    batch = next(iter(load(shards, fields=FIELDS, shuffle=False)))
    back = pickle.loads(pickle.dumps(batch))
    check(back)
    assert pickle.loads(pickle.dumps(back))["note"] == batch["note"]
    check(batch.to("cpu"))
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved["text"] is batch["text"]
    assert moved["fixed"].is_meta and moved["arrays"][1].is_meta and moved["ragged"][0].is_meta
    assert batch.pin_memory()["text"] == batch["text"]
    words = repr(batch)
    assert "text: list of 8 str" in words and "ragged: (uint8 (" in words and "arrays: list of 8 Tensor" in words


def test_json_rows_are_a_sequence() -> None:
    rows = feedline.tensors.JsonRows([b"1", b"[2]", b"bad"])
    assert len(rows) == 3 and rows[0] == 1 and rows[:2] == [1, [2]] and rows[-2] is rows[1]
    with pytest.raises(IndexError):
        rows[3]
    with pytest.raises(json.JSONDecodeError):
        list(rows)
    assert feedline.tensors.JsonRows([b"1"]) == [1] != feedline.tensors.JsonRows([b"2"])


BAD = {
    "bad-value: not UTF-8": ({"f": feedline.Text("f")}, b"\xff"),
    "too-large: 9 bytes": ({"f": feedline.Text("f", max_bytes=8)}, b"123456789"),
    "bad-value: not JSON": ({"f": feedline.Json("f")}, b"{'a': 1}"),
    "empty": ({"f": feedline.Json("f")}, b""),
    "bad-value: the array is float64 of shape [2]": ({"f": feedline.Array("f", shape=(2,), dtype="float32")}, npy(numpy.zeros(2))),
    "bad-value: the array is int8 of shape [3]": ({"f": feedline.Array("f", shape=(2,), dtype="int8")}, npy(numpy.zeros(3, "int8"))),
    "too-large": ({"f": feedline.Array("f", shape=None, dtype="int8", max_bytes=8)}, npy(numpy.zeros(9, "int8"))),
    "truncated": ({"f": feedline.Array("f", shape=None, dtype="int8")}, npy(numpy.zeros(9, "int8"))[:-1]),
    "pickle": ({"f": feedline.Array("f", shape=None, dtype="int8")}, npy(numpy.array([{}], dtype=object))),
    "complex": ({"f": feedline.Array("f", shape=None, dtype="int8")}, npy(numpy.zeros(2, "complex64"))),
    "missing-field: no array": ({"f": feedline.Array("f", member="z", shape=None, dtype="int8")}, npz(x=numpy.zeros(2))),
    "corrupt: .npz": ({"f": feedline.Array("f", member="x", shape=None, dtype="int8")}, npy(numpy.zeros(2))),
    "missing-field: the sample has none of: f": ({"f": feedline.Text("f")}, None),
}  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_bad_values_are_faults_by_name(load, tmp_path, words) -> None:
    fields, body = BAD[words]
    members = [("a.f", body), ("a.x", b"")] if body is not None else [("a.x", b""), ("b.f", b"")]
    datasets.write_shard(tmp_path / "a.tar", members)
    with pytest.raises(feedline.SampleError, match=words.replace("[", r"\[")):
        list(load(str(tmp_path / "a.tar"), fields=fields, shuffle=False))


def test_every_number_type_arrives(load, tmp_path) -> None:
    names = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
    arrays = {name: numpy.array([0, 1, 1], name) for name in names}
    datasets.write_shard(tmp_path / "a.tar", [("k.npz", npz(**arrays)), ("other.x", b"")])
    fields = {name: feedline.Array("npz", member=name, shape=[3], dtype=name, default=1) for name in names}
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False, batch_size=2)
    for name in names:
        assert str(batch[name].dtype).removeprefix("torch.") == name
        assert as_numpy(batch[name]).tolist() == [[0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: feedline.Text("txt", max_bytes=0), ValueError, "at least 1"),
        (lambda: feedline.Text("txt", default=b"x").default_bytes(), TypeError, "default must be a str"),
        (lambda: feedline.Bytes("bin", as_="tensor"), ValueError, "ragged"),
        (lambda: feedline.Array("npy", shape=(2,), dtype="complex64"), ValueError, "dtype must be one of"),
        (lambda: feedline.Array("npy", shape=(2, -1), dtype="int8"), ValueError, "0 or more"),
        (lambda: feedline.Array("npy", shape=(2,), dtype="int8", default=300).default_bytes(), ValueError, "no element"),
        (lambda: feedline.Int("cls", default=0.5).default_bytes(), TypeError, "must be an int"),
        (lambda: feedline.Mask("png"), ValueError, "fix the output size"),
        (lambda: feedline.Mask("png", feedline.Resize((4, 4)), like="image"), ValueError, "leave those of the mask out"),
        (lambda: feedline.Mask("png", like="image", fill=256), ValueError, "fill=256"),
    ],
)
def test_wrong_fields(make, error, words) -> None:
    with pytest.raises(error, match=words):
        make()


def test_what_cannot_fit_a_batch_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="lower max_bytes"):
        feedline.Loader(__file__, batch_size=4096, fields={"bin": feedline.Bytes("bin")})


def test_defaults_are_counted(load, shards, serve) -> None:
    import urllib.request

    sidecar = serve("--metrics", "127.0.0.1:0")
    loader = load(shards, fields=FIELDS, sidecar=sidecar.socket)
    batches = iter(loader)
    for batch in batches:
        check(batch)
    metrics = urllib.request.urlopen(f"http://{sidecar.ready['metrics']}/metrics").read().decode()
    line = next(line for line in metrics.splitlines() if line.startswith("feedline_rows_defaulted_total{"))
    assert float(line.split()[-1]) >= len(range(0, COUNT, 3))


def test_fields_are_values() -> None:
    assert feedline.Text("txt") == feedline.Text(["txt"]) != feedline.Text("txt", default="")
    assert len({feedline.Json("json", default={}), feedline.Json("json", default={}), feedline.Json("json")}) == 2
    assert pickle.loads(pickle.dumps(feedline.Text("txt"))) == feedline.Text("txt")
    assert pickle.loads(pickle.dumps(feedline.Text("txt"))).default is feedline.REQUIRED


@pytest.mark.parametrize("mover", ["lightning", "accelerate"])
def test_trainers_frameworks_move_values(load, shards, mover) -> None:
    torch = pytest.importorskip("torch")
    batch = next(iter(load(shards, fields=FIELDS)))
    if mover == "lightning":
        moved = pytest.importorskip("lightning_fabric.utilities").move_data_to_device(batch, torch.device("meta"))
    else:
        moved = pytest.importorskip("accelerate.utils.operations").send_to_device(batch, "meta")
    assert moved["text"] == batch["text"]
    assert moved["json"] is batch["json"]
    assert moved["arrays"][1].is_meta and moved["ragged"][1].is_meta and moved["fixed"].is_meta
