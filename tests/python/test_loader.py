"""The loader end to end, in one process with its private sidecar."""

from __future__ import annotations

import copy
import gc
import hashlib
import logging
import pickle

import numpy
import pytest

import feedline

torch = pytest.importorskip("torch")


def keys_of(loader) -> list[str]:
    return [key for batch in loader for key in batch.sample_keys]


def digest(loader) -> str:
    total = hashlib.sha256()
    for batch in loader:
        for tensor in batch:
            total.update(numpy.ascontiguousarray(tensor.numpy()).tobytes())
    return total.hexdigest()


def test_the_example(load, dataset) -> None:
    loader = load(batch_size=16, drop_last=True)
    assert len(loader) == 6
    assert len(loader.dataset) == 100
    assert loader.dataset.classes == [f"class {label}" for label in range(7)]
    label_of = dict(zip(dataset.keys, dataset.labels, strict=True))
    seen = []
    for _epoch in range(2):
        count = 0
        for batch in loader:
            images, labels = batch
            assert (images.dtype, images.shape) == (torch.uint8, (16, 3, 32, 32))
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert (labels.dtype, labels.shape) == (torch.int64, (16,))
            assert labels.tolist() == [label_of[key] for key in batch.sample_keys]
            assert batch.valid.all()
            assert batch.report == []
            seen.append(batch.sample_keys)
            count += 1
        assert count == 6
    first, second = sum(seen[:6], []), sum(seen[6:], [])
    assert len(set(first)) == len(set(second)) == 96
    assert first != second


@pytest.mark.parametrize(
    ("tail", "batches", "rows"), [("short", 13, [8] * 12 + [4]), ("drop", 12, [8] * 12), ("pad", 13, [8] * 13)]
)
def test_tails(load, dataset, tail, batches, rows) -> None:
    loader = load(shuffle=False, tail=tail)
    assert len(loader) == batches
    got = list(loader)
    assert [len(batch["label"]) for batch in got] == rows
    keys = [key for batch in got for key, valid in zip(batch.sample_keys, batch.valid.tolist(), strict=True) if valid]
    assert keys == dataset.keys[: len(keys)]
    assert len(keys) == (96 if tail == "drop" else 100)
    assert all(batch["image"].shape[0] == len(batch["label"]) for batch in got)


def test_numpy_batches(load, monkeypatch) -> None:
    torches = next(iter(load(seed=3)))
    monkeypatch.setenv("FEEDLINE_TENSORS", "numpy")
    images, labels = next(iter(load(seed=3)))
    assert isinstance(images, numpy.ndarray)
    assert (images.shape, images.dtype, labels.dtype) == ((8, 32, 32, 3), numpy.uint8, numpy.int64)
    assert numpy.array_equal(images, torches["image"].permute(0, 2, 3, 1).numpy())
    assert images.flags.writeable
    monkeypatch.setenv("FEEDLINE_TENSORS", "jax")
    with pytest.raises(ValueError, match="torch or numpy"):
        next(iter(load(seed=3)))


def test_channel_first_memory(load, monkeypatch) -> None:
    last, first = next(iter(load())), next(iter(load(layout="NCHW")))
    assert first["image"].is_contiguous()
    assert torch.equal(first["image"], last["image"])
    monkeypatch.setenv("FEEDLINE_TENSORS", "numpy")
    images, _ = next(iter(load(layout="NCHW")))
    assert images.shape == (8, 3, 32, 32)
    assert numpy.array_equal(images, last["image"].numpy())


def test_other_fields(load, dataset) -> None:
    fields = {"number": feedline.Float("cls"), "label": feedline.Int(["no", "cls"])}
    number, label = next(iter(load(fields=fields, shuffle=False)))
    assert (number.dtype, label.dtype) == (torch.float64, torch.int64)
    assert number.tolist() == label.tolist() == dataset.labels[:8]


def test_epochs_differ_and_repeat(load) -> None:
    loader = load()
    first, second = digest(loader), digest(loader)
    assert first != second
    assert digest(load()) == first
    loader.set_epoch(0)
    assert digest(loader) == first
    loader.sampler.set_epoch(1)
    assert digest(loader) == second
    assert digest(load(seed=6)) != first


def test_early_break(load) -> None:
    whole = [keys_of(loader) for loader in [load()] for _ in range(2)]
    loader = load()
    for number, batch in enumerate(loader):
        assert batch.sample_keys == whole[0][8 * number : 8 * number + 8]
        if number == 3:
            break
    assert keys_of(loader) == whole[1]
    assert loader.epoch == 2


def test_a_look_at_the_first_batch_is_no_epoch(load) -> None:
    whole = keys_of(load())
    loader = load()
    assert loader.peek().sample_keys == whole[:8]
    assert loader.peek().sample_keys == whole[:8]
    for batch in loader:
        assert batch.sample_keys == whole[:8]
        break
    assert next(iter(loader)).sample_keys == whole[:8]
    assert keys_of(loader) == whole


def test_the_batches_are_the_user_s(load) -> None:
    """Tensors may be kept, changed in place, and outlive loader and iterator."""
    expected = [batch["image"].clone() for batch in load()]
    loader = load()
    kept = []
    for batch in loader:
        kept.append(batch["image"])
        batch["label"].fill_(-1)
    loader.close()
    del loader, batch
    gc.collect()
    assert len(kept) == 13 > 8
    for image, before in zip(kept, expected, strict=True):
        assert torch.equal(image, before)
        image.fill_(7)
    assert all((image == 7).all() for image in kept)


BIG = {
    "image": feedline.Image(["jpg"], feedline.RandomResizedCrop(64), feedline.RandomHorizontalFlip()),
    "label": feedline.Int("cls"),
}


def test_list_of_all_batches(load, caplog) -> None:
    """Eight rows of 64 x 64 x 3 are above 64 KiB, so these batches hold slots, until copies come."""
    expected = digest(load(fields=BIG))
    caplog.clear()
    loader = load(fields=BIG, slots=4)
    batches = list(loader)
    assert len(batches) == 13
    assert digest(batches) == expected
    assert loader.copied_batches == 11
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "2 of 4 slots" in warnings[0]
    del batches
    assert keys_of(loader)
    assert loader.copied_batches == 11, "batches that are let go of come in place again"


def test_gradient_accumulation(load) -> None:
    expected = [batch["image"].clone() for batch in load(fields=BIG)]
    held, seen = [], []
    for batch in load(fields=BIG, slots=4):
        held.append(batch["image"])
        if len(held) == 3:
            seen += [image.clone() for image in held]
            held.clear()
    seen += held
    assert all(torch.equal(got, want) for got, want in zip(seen, expected, strict=True))


def test_strict_raises_and_goes_on(load) -> None:
    expected = keys_of(load(fields=BIG))
    loader = load(fields=BIG, slots=4, zero_copy="strict")
    iterator = iter(loader)
    held = [next(iterator) for _ in range(2)]
    keys = [key for batch in held for key in batch.sample_keys]
    for _ in range(2):
        with pytest.raises(feedline.SlotsHeldError, match="2 of 4 slots"):
            next(iterator)
    del held
    keys += [key for batch in iterator for key in batch.sample_keys]
    assert keys == expected


def test_copies_hold_no_slot(load) -> None:
    expected = digest(load(fields=BIG))
    loader = load(fields=BIG, slots=4, zero_copy="copy")
    assert digest(list(loader)) == expected
    assert loader.copied_batches == 0


def test_small_fields_hold_no_slot(load) -> None:
    labels = []
    loader = load(fields=BIG, slots=4, shuffle=False, tail="drop")
    for _images, batch_labels in loader:
        labels.append(batch_labels)
    del _images
    assert loader.copied_batches == 0
    assert torch.cat(labels).tolist() == [number % 7 for number in range(96)]


def test_any_view_keeps_the_slot(load) -> None:
    iterator = iter(load(fields=BIG, slots=4))
    row = next(iterator)["image"][3, 1]
    before = row.clone()
    for _ in iterator:
        pass
    assert torch.equal(row, before)


def test_two_loaders_side_by_side(load) -> None:
    train, validate = keys_of(load()), keys_of(load(shuffle=False, seed=1))
    one, two = load(), load(shuffle=False, seed=1)
    got_one, got_two = [], []
    for left, right in zip(one, two, strict=True):
        got_one += left.sample_keys
        got_two += right.sample_keys
    assert (got_one, got_two) == (train, validate)


def test_two_iterations_of_one_loader(load) -> None:
    loader = load()
    for left, right in zip(loader, loader, strict=True):
        assert left.sample_keys == right.sample_keys
        assert torch.equal(left["image"], right["image"])
    assert loader.epoch == 1


def test_an_iterator_that_is_done_stays_done(load) -> None:
    iterator = iter(load())
    for _ in iterator:
        pass
    with pytest.raises(StopIteration):
        next(iterator)


def test_collate_fn(load) -> None:
    loader = load(collate_fn=lambda batch: {"pixels": batch["image"], "keys": batch.sample_keys})
    plain = load()
    for got, batch in zip(loader, plain, strict=True):
        assert set(got) == {"pixels", "keys"}
        assert got["keys"] == batch.sample_keys
        assert torch.equal(got["pixels"], batch["image"])


def test_indices(load, dataset) -> None:
    subset = [3, 50, 7, 99, 20]
    assert keys_of(load(shuffle=False, indices=subset)) == [dataset.keys[number] for number in subset]
    shuffled = load(indices=numpy.arange(10, 30))
    assert len(shuffled) == 3
    assert sorted(keys_of(shuffled)) == dataset.keys[10:30]
    with pytest.raises(ValueError, match="100"):
        len(load(indices=[100]))


def test_weights(load, dataset) -> None:
    weights = [0.0] * 100
    weights[4], weights[60] = 1.0, 3.0
    loader = load(weights=weights, epoch_length=800)
    keys = keys_of(loader)
    assert len(keys) == 800
    assert set(keys) == {dataset.keys[4], dataset.keys[60]}
    assert 500 < keys.count(dataset.keys[60]) < 700
    assert keys_of(load(weights=weights, epoch_length=800)) == keys
    assert keys_of(loader) != keys
    with pytest.raises(ValueError, match="100"):
        len(load(weights=[1.0, 2.0]))


def test_state_goes_on_exactly(load) -> None:
    reference = load()
    whole = [batch["image"].clone() for _ in range(2) for batch in reference]
    loader = load()
    for number, _batch in enumerate(loader):
        if number == 4:
            break
    state = loader.state_dict()
    assert state == {
        "version": 1, "epoch": 0, "position": 40, "seed": 5, "order": "global", "mix": None, "quarantine": None,
        "drop_missing": [], "positions": 100, "databases": [], "selection": None,
        "trace": {"hash": loader.trace_hash, "rank": 0, "world_size": 1},
    }  # fmt: skip
    resumed = load()
    resumed.load_state_dict(state)
    rest = [batch["image"].clone() for _ in range(2) for batch in resumed]
    assert len(rest) == 8 + 13
    assert all(torch.equal(got, want) for got, want in zip(rest, whole[5:], strict=True))
    assert resumed.state_dict() == reference.state_dict()


def test_state_within_the_loop(load) -> None:
    loader = load()
    positions = []
    for _batch in loader:
        positions.append((loader.state_dict()["epoch"], loader.state_dict()["position"]))
    assert positions == [(0, min(8 * number, 100)) for number in range(1, 14)]
    assert loader.state_dict()["epoch"] == 1


def test_a_copied_loader_has_a_stream_of_its_own(load) -> None:
    loader = load()
    iterator = iter(loader)
    next(iterator)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        other.set_epoch(0)
        assert keys_of(other) == keys_of(load())
        other.close()


def test_one_summary_line_an_epoch(load, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    loader = load()
    for _ in range(2):
        keys_of(loader)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch ")]
    assert [line.split(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    for line in lines:
        assert "13 batches" in line
        assert "images/s, waited" in line
        assert "bad samples: none" in line
    opened = [record.getMessage() for record in caplog.records if "samples in 4 shards" in record.getMessage()]
    assert len(opened) == 1


def test_errors_at_the_opening(load, dataset, tmp_path) -> None:
    with pytest.raises(ValueError, match="caption"):
        len(load(fields={"text": feedline.Int("caption")}))
    with pytest.raises(ValueError, match="batch_size"):
        len(load(batch_size=200, drop_last=True))
    text = tmp_path / "notes.tar"
    text.write_bytes(b"this is no tar\n" * 100)
    with pytest.raises((feedline.ShardError, ValueError), match="notes.tar"):
        len(load(text))
    with pytest.raises((FileNotFoundError, ValueError), match="gone.tar"):
        len(load([dataset.shards[0], tmp_path / "gone.tar"]))


def test_lightning_and_accelerate_move_real_batches(load) -> None:
    batch = next(iter(load()))
    utilities = pytest.importorskip("lightning_fabric.utilities")
    operations = pytest.importorskip("accelerate.utils.operations")
    for moved in (
        utilities.move_data_to_device(batch, torch.device("cpu")),
        operations.send_to_device(batch, torch.device("cpu")),
    ):
        assert torch.equal(moved["image"], batch["image"])
    assert utilities.move_data_to_device(batch, torch.device("meta")).sample_keys == batch.sample_keys
