"""A batch is a tuple with names, and moves as tensors do."""

from __future__ import annotations

import pickle

import pytest

import feedline
from feedline.batch import FaultReport, Words, make_batch

torch = pytest.importorskip("torch")


@pytest.fixture
def batch() -> feedline.Batch:
    fault = FaultReport("truncated", "/a.tar", "k1", "image", 512, "the data end at 12 of 40 bytes", 7, 1)
    words = Words(["k0", "k1"], [True, False], [fault], 3, 16, 32)
    return make_batch([torch.zeros(2, 3, 4, 4), torch.tensor([5, 6])], {"image": 0, "label": 1}, words, None)


def test_tuple_and_names(batch) -> None:
    images, labels = batch
    assert images is batch["image"] is batch[0]
    assert labels is batch["label"] is batch[-1]
    assert isinstance(batch, tuple)
    assert len(batch) == 2
    assert batch[:1] == (images,)
    assert batch.fields == ("image", "label")
    with pytest.raises(KeyError, match="'image', 'label'"):
        batch["images"]
    with pytest.raises(IndexError):
        batch[2]


def test_what_is_known_of_the_rows(batch) -> None:
    assert batch.sample_keys == ["k0", "k1"]
    assert batch.valid.tolist() == [True, False]
    assert batch.valid.dtype == torch.bool
    assert (batch.epoch, batch.position, batch.end_position) == (3, 16, 32)
    assert str(batch.report[0]) == (
        "/a.tar: key 'k1', field 'image', byte 512: truncated: the data end at 12 of 40 bytes"
    )
    assert repr(batch) == "Batch(image: float32 (2, 3, 4, 4), label: int64 (2,))"


def check_moved(batch, moved, dtype) -> None:
    assert isinstance(moved, feedline.Batch)
    assert moved["image"].dtype == dtype
    assert moved.sample_keys == batch.sample_keys


def test_to(batch) -> None:
    assert batch.to("cpu", non_blocking=True) is batch
    check_moved(batch, batch.to(torch.float16), torch.float16)
    check_moved(batch, batch.to("meta"), torch.float32)
    assert batch.to("meta")["label"].device.type == "meta"
    assert batch.pin_memory() is batch or batch.pin_memory()["image"].is_pinned()


def test_pickle(batch) -> None:
    copy = pickle.loads(pickle.dumps(batch))
    check_moved(batch, copy, torch.float32)
    assert copy.report == batch.report


def test_numpy_batches_stay_where_they_are() -> None:
    numpy = pytest.importorskip("numpy")
    batch = make_batch([numpy.zeros(3)], {"x": 0}, Words(["k"] * 3, [True] * 3, [], 0, 0, 3), None)
    assert batch.to("cpu") is batch
    assert batch.pin_memory() is batch
    assert batch.valid.dtype == bool
    with pytest.raises(TypeError, match="NumPy arrays"):
        batch.to("cuda")


def test_lightning_moves_it(batch) -> None:
    utilities = pytest.importorskip("lightning_fabric.utilities")
    check_moved(batch, utilities.move_data_to_device(batch, torch.device("meta")), torch.float32)
    assert utilities.move_data_to_device(batch, torch.device("meta"))["image"].device.type == "meta"


def test_accelerate_moves_it(batch) -> None:
    operations = pytest.importorskip("accelerate.utils.operations")
    moved = operations.send_to_device(batch, torch.device("meta"), non_blocking=True)
    check_moved(batch, moved, torch.float32)
    assert moved["image"].device.type == "meta"
    assert operations.find_batch_size(batch) == 2


def test_functions_that_map_over_tuples_get_a_batch_without_names() -> None:
    bare = feedline.Batch([1, 2])
    assert list(bare) == [1, 2]
    with pytest.raises(KeyError, match="bare tensors"):
        bare["image"]
    with pytest.raises(AttributeError, match="bare tensors"):
        bare.sample_keys
