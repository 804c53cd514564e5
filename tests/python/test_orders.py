"""Orders, mixes and quarantine, over real shards."""

from __future__ import annotations

import json
import logging
import pickle
import shutil

import datasets
import pytest
from conftest import FIELDS

import feedline

pytest.importorskip("torch")


def keys_of(batches) -> list[str]:
    return [key for batch in batches for key in batch.sample_keys]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[datasets.Dataset, datasets.Dataset]:
    """70 samples in 3 shards, 90 in 2; the keys tell them apart."""
    folder = tmp_path_factory.mktemp("pair")
    first = datasets.write(folder / "first", 70, 3)
    second = datasets.write(folder / "second", 90, 2)
    for number, path in enumerate(second.shards):
        lo, hi = number * 90 // 2, (number + 1) * 90 // 2
        members = []
        for sample in range(lo, hi):
            # Another name for the image's field.
            members += [(f"other{sample:05d}.jpeg", second.photos[sample]), (f"other{sample:05d}.cls", b"3")]
        datasets.write_shard(path, members)
    return first, second


BOTH = {**FIELDS, "image": feedline.Image(["jpg", "jpeg"], feedline.RandomResizedCrop(32))}


# Orders.


def test_block_order_goes_shard_by_shard(load, dataset, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    loader = load(order="block", block_shards=2, shuffle=None)
    epochs = [keys_of(loader) for _ in range(3)]
    shard_of = {key: number * 4 // len(dataset) for number, key in enumerate(dataset.keys)}
    for keys in epochs:
        assert sorted(keys) == dataset.keys
        halves = [{shard_of[key] for key in half} for half in (keys[:50], keys[50:])]
        assert halves[0] | halves[1] == {0, 1, 2, 3}
        assert not halves[0] & halves[1]
        changes = sum(shard_of[one] != shard_of[two] for one, two in zip(keys, keys[1:], strict=False))
        assert changes > 25, "the samples of a block are permuted as one"
    assert len({tuple(keys) for keys in epochs}) == 3
    assert keys_of(load(order="block", block_shards=2)) == epochs[0]
    notices = [record.getMessage() for record in caplog.records if record.getMessage().startswith('order="block"')]
    assert len(notices) == 2
    assert "2 of 4 shards at a time, about 50 samples" in notices[0]
    assert "of what a true shuffle does, samples move " in notices[0]


def test_small_datasets_are_one_block_by_default(load, dataset, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    assert sorted(keys_of(load(order="block"))) == dataset.keys
    assert any("4 of 4 shards at a time" in record.getMessage() for record in caplog.records)


def test_block_order_over_ranks_and_resumed(load, dataset) -> None:
    options = {"order": "block", "block_shards": 1, "batch_size": 5}
    whole = keys_of(load(**options, rank=0, world_size=1))
    # Global batches of 5 x 2 at two ranks.
    ranks = [[list(batch.sample_keys) for batch in load(**options, rank=rank, world_size=2)] for rank in range(2)]
    assert [key for one, two in zip(*ranks, strict=True) for key in one + two] == whole
    loader = load(**options)
    for number, _batch in enumerate(loader):
        if number == 6:
            break
    resumed = load(**{**options, "batch_size": 13})
    resumed.load_state_dict(loader.state_dict())
    assert keys_of(resumed) == whole[35:]
    with pytest.raises(ValueError, match="block_shards="):
        load(order="block", block_shards=2).load_state_dict(loader.state_dict())


def test_block_order_of_a_subset(load, dataset) -> None:
    numbers = [99, 0, 1, 50, 51, 52, 26]
    keys = keys_of(load(order="block", block_shards=1, indices=numbers))
    assert sorted(keys) == sorted(dataset.keys[number] for number in numbers)
    shards = [dataset.keys.index(key) // 25 for key in keys]
    assert sum(one != two for one, two in zip(shards, shards[1:], strict=False)) == 3


def test_orders_by_name(load, dataset) -> None:
    assert keys_of(load(order="sequential", shuffle=None)) == dataset.keys
    assert keys_of(load(order="global", shuffle=None)) == keys_of(load(shuffle=True))


# Mixes.


def test_a_mix_keeps_its_shares_and_repeats_nothing(load, pair, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    first, second = pair
    loader = load(feedline.Mix([(first.pattern, 0.7), (second.shards, 0.3)]), fields=BOTH, tail="drop", batch_size=10)
    assert len(loader) == 10
    assert len(loader.dataset) == 160
    epochs = [keys_of(loader) for _ in range(3)]
    for keys in epochs:
        assert sum(key.startswith("photo") for key in keys) == 70
    assert sorted(key for key in epochs[0] if key.startswith("photo")) == first.keys
    # What one epoch leaves of the larger part comes in the next.
    others = [key for keys in epochs for key in keys if key.startswith("other")]
    assert sorted(others) == [f"other{number:05d}" for number in range(90)]
    assert any(record.getMessage().startswith("mix, part 1: 0.3000") for record in caplog.records)
    again = load(feedline.Mix([(first.pattern, 7), (second.shards, 3)]), fields=BOTH, batch_size=10)
    assert keys_of(again) == epochs[0]


def test_a_mix_resumes_exactly(load, pair) -> None:
    first, second = pair
    mix = feedline.Mix([(first.pattern, 1), (second.pattern, 3)], length=200)
    options = {"fields": BOTH, "batch_size": 8}
    reference = load(mix, **options)
    whole = [(batch.sample_keys, batch["image"].clone()) for _ in range(2) for batch in reference]
    assert len(whole) == 50
    loader = load(mix, **options)
    for number, _batch in enumerate(loader):
        if number == 10:
            break
    resumed = pickle.loads(pickle.dumps(load(mix, **options)))
    resumed.load_state_dict(loader.state_dict())
    rest = [(batch.sample_keys, batch["image"].clone()) for _ in range(2) for batch in resumed]
    resumed.close()
    assert [keys for keys, _ in rest] == [keys for keys, _ in whole[11:]]
    assert all((got == want).all() for (_, got), (_, want) in zip(rest, whole[11:], strict=True))
    with pytest.raises(ValueError, match="the same Mix"):
        load(feedline.Mix([(first.pattern, 1), (second.pattern, 2)], length=200), **options).load_state_dict(
            loader.state_dict()
        )


def test_a_mix_over_ranks_is_one_order(load, pair) -> None:
    first, second = pair
    mix = feedline.Mix([(first.pattern, 1), (second.pattern, 1)], stop="all")
    whole = keys_of(load(mix, fields=BOTH, batch_size=6))
    assert len(whole) == 180
    ranks = [[list(b.sample_keys) for b in load(mix, fields=BOTH, batch_size=2, rank=rank, world_size=3)]
             for rank in range(3)]  # fmt: skip
    assert [key for batches in zip(*ranks, strict=True) for batch in batches for key in batch] == whole


def test_a_sequential_mix_is_the_same_in_every_epoch(load, pair) -> None:
    first, second = pair
    loader = load(feedline.Mix([(first.pattern, 1), (second.pattern, 1)], length=100), fields=BOTH, shuffle=False)
    epochs = [keys_of(loader) for _ in range(2)]
    assert epochs[0] == epochs[1]
    photos = [key for key in epochs[0] if key.startswith("photo")]
    assert photos == first.keys[: len(photos)]


def test_wrong_mixes(pair) -> None:
    first, second = pair
    parts = [(first.pattern, 1.0), (second.pattern, 1.0)]
    for wrong, error, words in (
        (lambda: feedline.Mix([]), TypeError, "pairs"),
        (lambda: feedline.Mix([first.pattern]), TypeError, "pairs"),
        (lambda: feedline.Mix([(first.pattern, 0)]), ValueError, "above 0"),
        (lambda: feedline.Mix([(first.pattern, "1")]), TypeError, "part 0"),
        (lambda: feedline.Mix(parts, length=0), ValueError, "at least 1"),
        (lambda: feedline.Mix(parts, stop="longest"), ValueError, "'first' or 'all'"),
        (lambda: feedline.Mix(parts, length=5, stop="all"), ValueError, "leave one out"),
        (lambda: feedline.Loader(feedline.Mix(parts), fields=BOTH, indices=[1]), ValueError, "one dataset"),
        (lambda: feedline.Loader(feedline.Mix(parts), fields=BOTH, order="block"), ValueError, "not a Mix"),
    ):
        with pytest.raises(error, match=words):
            wrong()


# Quarantine.


BAD = {17: b"this is no photo", 90: b"\xff\xd8\xff", 151: b"\xff\xd8\xff\xe0"}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> datasets.Dataset:
    """200 samples, three of which are no photos."""
    return datasets.write(tmp_path_factory.mktemp("damaged"), 200, 4, BAD)


@pytest.fixture
def proposal(load, serve, damaged, tmp_path):
    """The list that a run over `damaged` proposes, copied."""
    loader = load(damaged.pattern, error_budget=0.05, sidecar=serve("--cache-dir", str(tmp_path / "cache")).socket)
    assert sum(len(batch.report) for batch in loader) == 3
    loader.close()
    return shutil.copytree(tmp_path / "cache" / "quarantine", tmp_path / "quarantine")


def test_a_proposal_is_taken_up_by_the_next_run(load, damaged, proposal, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    first = load(damaged.pattern, error_budget=0.05, on_error="replace")
    bad = {damaged.keys[number] for number in BAD}
    rows = []
    for batch in first:
        replaced = {fault.row: fault.key for fault in batch.report}
        rows += [replaced.get(row, key) for row, key in enumerate(batch.sample_keys)]
    assert sorted(rows) == damaged.keys
    # On errors the second run raises: there must be none.
    second = load(damaged.pattern, quarantine=proposal, on_error="raise")
    assert keys_of(second) == [key for key in rows if key not in bad]
    assert any("3 samples are left out" in record.getMessage() for record in caplog.records)
    assert any("3 in quarantine" in record.getMessage() for record in caplog.records)
    files = sorted(proposal.iterdir())
    assert keys_of(load(damaged.pattern, quarantine=files, on_error="raise", order="sequential", shuffle=None)) == [
        key for key in damaged.keys if key not in bad
    ]


def test_quarantine_goes_with_ranks_blocks_and_mixes(load, damaged, pair, proposal) -> None:
    good = sorted(key for number, key in enumerate(damaged.keys) if number not in BAD)
    options = {"quarantine": proposal, "on_error": "raise"}
    ranks = [keys_of(load(damaged.pattern, rank=rank, world_size=3, **options)) for rank in range(3)]
    assert sorted(key for keys in ranks for key in keys) == good
    assert sorted(keys_of(load(damaged.pattern, order="block", block_shards=1, **options))) == good
    mix = feedline.Mix([(damaged.pattern, 1), (pair[1].pattern, 1)], stop="all")
    photos = [key for key in keys_of(load(mix, fields=BOTH, **options)) if key.startswith("photo")]
    assert sorted(photos) == good


def test_a_resume_with_another_list_is_refused(load, damaged, proposal, tmp_path) -> None:
    loader = load(damaged.pattern, quarantine=proposal, on_error="raise")
    keys = keys_of(loader)
    loader.set_epoch(0)
    for number, _batch in enumerate(loader):
        if number == 9:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(state["quarantine"]) == 32
    resumed = load(damaged.pattern, quarantine=proposal, on_error="raise")
    resumed.load_state_dict(state)
    assert keys_of(resumed) == keys[80:]
    shorter = tmp_path / "shorter.jsonl"
    shorter.write_text("".join(path.read_text() for path in sorted(proposal.iterdir())[:1]))
    other = load(damaged.pattern, quarantine=shorter)
    for loader, own in ((other, other.state_dict()["quarantine"]), (load(damaged.pattern), None)):
        with pytest.raises(ValueError, match=f"quarantine {state['quarantine']}, the loader has {own}"):
            loader.load_state_dict(state)


def test_entries_that_no_longer_fit_are_refused_by_name(load, damaged, tmp_path) -> None:
    shard = str(damaged.shards[0])
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps({"shard": shard, "key": "gone"}) + "\n")
    with pytest.raises(ValueError, match=f'1 of 1 entries.*\n.*{shard}: key "gone": the shard has no such key'):
        len(load(damaged.pattern, quarantine=path))
    path.write_text(json.dumps({"shard": shard, "key": damaged.keys[3], "offset": 77}) + "\n")
    with pytest.raises(ValueError, match="none of its members is at byte 77"):
        len(load(damaged.pattern, quarantine=path))
    path.write_text(json.dumps({"shard": shard, "key": damaged.keys[3]}) + "\n" + '{"key": 3}\n')
    with pytest.raises(ValueError, match=f"{path}, line 2"):
        load(damaged.pattern, quarantine=path)
    with pytest.raises(FileNotFoundError, match="nothing.jsonl"):
        load(damaged.pattern, quarantine=tmp_path / "nothing.jsonl")


def test_entries_of_other_shards_are_told(load, dataset, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps({"shard": "/elsewhere/a.tar", "key": "k"}) + "\n")
    assert sorted(keys_of(load(quarantine=path))) == dataset.keys
    assert any("1 entries of the quarantine name shards" in record.getMessage() for record in caplog.records)
