"""Wrong arguments raise at once, with the fix in the message; DataLoader's names are mapped."""

from __future__ import annotations

import logging
import os
import pickle

import numpy
import pytest
from conftest import FIELDS

import feedline

torch = pytest.importorskip("torch")


def make(shards="/data/{0..3}.tar", **options):
    return feedline.Loader(shards, **{"batch_size": 4, "fields": FIELDS, **options})


@pytest.fixture
def shards(dataset):
    return dataset.pattern


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "at least 1"),
        ({"batch_size": None}, ValueError, "pass 1"),
        ({"batch_size": 2.5}, TypeError, "an int"),
        ({"batch_size": True}, TypeError, "an int"),
        ({"fields": {}}, TypeError, "must be a dict"),
        ({"fields": {"label": "cls"}}, TypeError, "feedline.Image, Mask, Boxes"),
        ({"fields": ["cls"]}, TypeError, "must be a dict"),
        ({"seed": -1}, ValueError, "at least 0"),
        ({"seed": 2**64}, ValueError, "at most 18446744073709551615"),
        ({"tail": "repeat"}, ValueError, '"short", "drop" or "pad"'),
        ({"tail": "pad", "drop_last": True}, ValueError, "leave one out"),
        ({"on_error": "ignore"}, ValueError, "'replace' or 'raise'"),
        ({"error_budget": 2}, ValueError, "0 to 1"),
        ({"layout": "CHWN"}, ValueError, "'NHWC' or 'NCHW'"),
        ({"zero_copy": "yes"}, ValueError, "'auto', 'strict' or 'copy'"),
        ({"slots": 2}, ValueError, "4 to 64"),
        ({"slots": 100}, ValueError, "4 to 64"),
        ({"slots": 8, "prefetch_factor": 2}, ValueError, "leave one out"),
        ({"prefetch_factor": 0}, ValueError, "at least 1"),
        ({"workers": 2, "num_workers": 3}, ValueError, "leave one out"),
        ({"num_workers": -1}, ValueError, "at least 0"),
        ({"timeout": -1}, ValueError, "0 or more"),
        ({"timeout": float("nan")}, ValueError, "0 or more"),
        ({"rank": 1}, ValueError, "together"),
        ({"rank": 2, "world_size": 2}, ValueError, "0 to world_size - 1"),
        ({"indices": []}, ValueError, "empty"),
        ({"indices": [-1]}, ValueError, "0 or more"),
        ({"indices": [0.5]}, ValueError, "sample numbers"),
        ({"indices": numpy.ones(3, bool)}, TypeError, "flatnonzero"),
        ({"indices": numpy.ones((2, 2), int)}, TypeError, "one row"),
        ({"weights": [-1.0, 2.0]}, ValueError, "at least 0"),
        ({"weights": [0.0, 0.0]}, ValueError, "not all 0"),
        ({"weights": ["a"]}, TypeError, "one number a sample"),
        ({"weights": [1.0], "indices": [0]}, ValueError, "weight of 0"),
        ({"epoch_length": 5}, ValueError, "weights="),
        ({"order": "shuffled"}, ValueError, "'block' or 'sequential'"),
        ({"order": "sequential", "shuffle": True}, ValueError, "leave shuffle= out"),
        ({"order": "global", "shuffle": False}, ValueError, "leave shuffle= out"),
        ({"order": "block", "shuffle": False}, ValueError, "leave shuffle= out"),
        ({"block_shards": 2, "shuffle": True}, ValueError, 'order="block"'),
        ({"order": "global", "block_shards": 2}, ValueError, 'order="block"'),
        ({"order": "block", "block_shards": 0}, ValueError, "at least 1"),
        ({"order": "block", "weights": [1.0]}, ValueError, "leave order='block' out"),
        ({"quarantine": 3}, TypeError, "a path or a list"),
        ({"quarantine": []}, TypeError, "a path or a list"),
        ({"sampler": torch.utils.data.SequentialSampler([1])}, ValueError, "indices= for a subset"),
        ({"batch_sampler": object()}, ValueError, "weights="),
        ({"batch_size": 2**20 + 1}, ValueError, "batch_size must be at most 1048576"),
        ({"batch_size": 2**40}, ValueError, "batch_size must be at most 1048576"),
        ({"workers": 5000}, ValueError, "workers must be at most 4096"),
        ({"num_workers": 2**70}, ValueError, "num_workers must be at most 4096"),
        ({"weights": [1.0], "epoch_length": 2**64}, ValueError, "epoch_length must be at most"),
        ({"rank": True, "world_size": 2}, TypeError, "are ints"),
        ({"rank": 0, "world_size": 2**32}, ValueError, "world_size must be at most 4294967295"),
        ({"error_budget": float("nan")}, ValueError, "error_budget is a share"),
        ({"error_budget": "0.5"}, TypeError, "error_budget must be a number"),
        ({"error_budget": None}, TypeError, "error_budget must be a number"),
        ({"indices": b"12345678"}, TypeError, "indices must be a sequence of numbers, got bytes"),
        ({"weights": b"12345678"}, TypeError, "weights must be a sequence of numbers, got bytes"),
        ({"weights": [1e308, 1e308]}, ValueError, "divide them all"),
        ({"collate_fn": 3}, TypeError, "callable"),
        ({"name": 3}, TypeError, "name must be a str"),
        ({"sidecar": ""}, ValueError, "leave it out"),
        ({"sidecar": "a\0b"}, ValueError, "path of a socket"),
        ({"sidecar": 3}, TypeError, "feedline serve"),
        ({"generator": 3}, TypeError, "torch.Generator"),
        ({"seed": 1, "generator": torch.Generator().manual_seed(2)}, ValueError, "contradict"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:40],
)  # fmt: skip
def test_wrong_arguments(shards, options, error, words) -> None:
    with pytest.raises(error, match=words):
        make(shards, **options)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (3, TypeError, "feedline convert"),
        ([], TypeError, "pattern"),
        ([3], TypeError, "pattern"),
        ("", TypeError, "non-empty"),
        (torch.utils.data.TensorDataset(), TypeError, "pattern|Dataset object"),
    ],
)
def test_wrong_shards(wrong, error, words) -> None:
    with pytest.raises(error, match=words):
        make(wrong)


def test_unknown_names_are_refused(shards) -> None:
    with pytest.raises(TypeError, match="batchsize"):
        make(shards, batchsize=3)


def test_a_distributed_sampler_is_told_about_ranks(shards) -> None:
    sampler = torch.utils.data.DistributedSampler([1, 2], num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="rank= and world_size="):
        make(shards, sampler=sampler)


def test_names_of_dataloader_are_mapped(shards, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    loader = make(
        shards, shuffle=True, num_workers=3, persistent_workers=True, prefetch_factor=4, timeout=30, drop_last=True,
        pin_memory=True, generator=torch.Generator().manual_seed(17), worker_init_fn=print,
        multiprocessing_context="fork", in_order=True, pin_memory_device="",
    )  # fmt: skip
    spec = loader._job.spec
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 3, True)
    assert (spec["slots"], spec["tail"], spec["seed"], spec["order"]) == (6, "drop", 17, "global")
    assert loader._job.timeout_s == 30
    words = [record.getMessage().split(":")[0].split()[0] for record in caplog.records]
    assert words == ["worker_init_fn", "multiprocessing_context"]


def test_defaults_are_dataloaders(shards) -> None:
    loader = feedline.Loader(shards, fields=FIELDS, timeout=0, num_workers=0)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (1, 0, False)
    assert (loader._job.spec["order"], loader._job.spec["tail"], loader._job.timeout_s) == ("sequential", "short", 600)
    assert loader._workers is None


def test_the_rule_for_bad_samples_follows_the_order(shards) -> None:
    assert make(shards, shuffle=True)._job.spec["on_error"] == "replace"
    assert make(shards)._job.spec["on_error"] == "raise"
    assert make(shards, on_error="replace")._job.spec["on_error"] == "replace"


def test_indices_and_weights_are_taken_from_any_sequence(shards) -> None:
    for indices in ([3, 1], (3, 1), numpy.array([3, 1]), torch.tensor([3, 1]), iter([3, 1])):
        assert list(make(shards, indices=indices)._job.indices) == [3, 1]
    for weights in ([1, 2.5], numpy.array([1, 2.5]), torch.tensor([1, 2.5])):
        assert list(make(shards, weights=weights)._job.weights) == [1, 2.5]
    assert make(shards, weights=[1, 2])._job.spec["order"] == "global"


def test_a_loader_pickles_with_its_place(shards) -> None:
    loader = make(shards, indices=[1, 2], seed=9)
    state = {
        "version": 1, "epoch": 3, "position": 8, "seed": 9, "order": "sequential", "mix": None, "quarantine": None, "drop_missing": [],
        "trace": {"hash": "12" * 16, "rank": 0, "world_size": 1},
    }  # fmt: skip
    loader.load_state_dict(state)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict() == {**state, "selection": loader.state_dict()["selection"]}
    assert copy._job == loader._job


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"version": 2, "epoch": 0, "position": 0, "seed": 0}, "version 2"),
        ({"version": 1, "epoch": 0, "position": 0, "seed": 4}, "seed=4"),
        ({"version": 1, "epoch": -1, "position": 0, "seed": 0}, "at least 0"),
        ({"version": 1, "epoch": 2**64, "position": 0, "seed": 0}, "epoch must be at most"),
        ({"version": 1, "epoch": 0, "position": 2**70, "seed": 0}, "position must be at most"),
        ({"version": 1, "epoch": 0, "seed": 0}, "lacks position"),
        ({"version": 1}, "lacks epoch, position, seed"),
    ],
)
def test_a_state_of_another_run_is_refused(shards, state, words) -> None:
    with pytest.raises(ValueError, match=words):
        make(shards).load_state_dict(state)


def test_a_state_is_a_dict(shards) -> None:
    with pytest.raises(TypeError, match="state_dict"):
        make(shards).load_state_dict(None)
    with pytest.raises(ValueError, match="epoch must be at most"):
        make(shards).set_epoch(2**64)


def test_paths_are_utf8(shards, tmp_path) -> None:
    with pytest.raises(ValueError, match="not UTF-8.*rename"):
        make(os.fsdecode(bytes(tmp_path) + b"/odd-\xff.tar"))
    assert make(shards, name="odd-\udcff")._job.spec["name"] == "odd-?"


@pytest.mark.parametrize("wrong", ["/no/such/folder/a.tar", "/no/such/{0..2}.tar", "/no/such/*.tar"])
def test_missing_shards_raise_at_once(wrong) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match="/no/such"):
        len(make(wrong))
