"""Bad samples: replaced, raised, counted, within a budget."""

from __future__ import annotations

import json
import logging

import datasets
import pytest

import feedline

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> datasets.Dataset:
    """200 samples, of which one is cut off, one is no image, and one is empty but for its magic."""
    whole = datasets.photo(1, 200, 150)
    damage = {17: whole[: len(whole) // 3], 90: b"this is no photo", 151: b"\xff\xd8\xff"}
    return datasets.write(tmp_path_factory.mktemp("damaged"), 200, 4, damage)


BAD = {17, 90, 151}


def test_replace(load, damaged, caplog) -> None:
    loader = load(damaged.pattern, error_budget=0.05)
    reports, keys, digests = [], [], []
    for batch in loader:
        keys += batch.sample_keys
        reports += batch.report
        digests.append(batch["image"].clone())
        for fault in batch.report:
            assert 0 <= fault.row < 8
            assert batch.sample_keys[fault.row] != fault.key, "the row belongs to the substitute, label and all"
    assert {fault.sample for fault in reports} == BAD
    assert len(keys) == 200
    for fault in reports:
        assert fault.key == damaged.keys[fault.sample]
        assert fault.shard == str(damaged.shards[fault.sample // 50])
        assert fault.field == "image"
        assert fault.offset > 0
        assert fault.fault_class in ("truncated", "corrupt", "unsupported")
        assert fault.message
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sorted(warnings) == sorted(f"bad sample replaced: {fault}" for fault in reports)
    again = [batch["image"].clone() for batch in load(damaged.pattern, error_budget=0.05)]
    assert all(torch.equal(one, two) for one, two in zip(digests, again, strict=True))


def test_labels_belong_to_their_pixels(load, damaged) -> None:
    label_of = dict(zip(damaged.keys, damaged.labels, strict=True))
    for batch in load(damaged.pattern, error_budget=0.05):
        assert batch["label"].tolist() == [label_of[key] for key in batch.sample_keys]


def test_substitutes_do_not_depend_on_timing(load, serve, damaged) -> None:
    expected = [batch["image"].clone() for batch in load(damaged.pattern, error_budget=0.05)]
    for options in (("--workers", "1"), ("--workers", "4", "--reader", "pread")):
        loader = load(damaged.pattern, error_budget=0.05, sidecar=serve(*options).socket)
        for batch, want in zip(loader, expected, strict=True):
            assert torch.equal(batch["image"], want)


def test_the_warning_comes_once_and_the_count_each_epoch(load, damaged, caplog) -> None:
    caplog.set_level(logging.INFO, "feedline")
    loader = load(damaged.pattern, error_budget=0.05)
    for _ in range(2):
        for _batch in loader:
            pass
    messages = [record.getMessage() for record in caplog.records]
    assert sum(message.startswith("bad sample replaced") for message in messages) == 3
    summaries = [message for message in messages if message.startswith("epoch ")]
    assert len(summaries) == 2
    assert all("bad samples: none" not in summary for summary in summaries)


def test_bad_samples_are_proposed_for_quarantine_once(load, serve, damaged, tmp_path) -> None:
    loader = load(damaged.pattern, error_budget=0.05, sidecar=serve("--cache-dir", str(tmp_path)).socket)
    for _ in range(2):
        for _batch in loader:
            pass
    files = sorted((tmp_path / "quarantine").glob("*.jsonl"))
    proposals = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(proposal["sample"] for proposal in proposals) == sorted(BAD)
    assert {proposal["key"] for proposal in proposals} == {damaged.keys[sample] for sample in BAD}


def test_raise(load, damaged) -> None:
    loader = load(damaged.pattern, shuffle=False, on_error="raise")
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    with pytest.raises(feedline.SampleError) as raised:
        next(iterator)
    for word in (str(damaged.shards[0]), damaged.keys[17], "image", "byte"):
        assert word in str(raised.value)
    assert next(iterator).sample_keys == damaged.keys[24:32], "the iteration goes on after the batch"


def test_raising_is_the_rule_without_shuffling(load, damaged) -> None:
    with pytest.raises(feedline.SampleError):
        for _ in load(damaged.pattern, shuffle=False):
            pass


def test_over_the_budget(load, tmp_path) -> None:
    damage = {number: b"\xff\xd8\xff" for number in range(0, 60, 3)}
    dataset = datasets.write(tmp_path, 60, 2, damage)
    with pytest.raises(feedline.BudgetError) as raised:
        for _ in range(40):
            for _batch in load(dataset.pattern, error_budget=0.01):
                pass
    for word in ("0.01", "1"):
        assert word in str(raised.value)
    assert any(name in str(raised.value) for name in ("truncated", "corrupt"))


def test_a_missing_field(load, tmp_path) -> None:
    photo = datasets.photo(1, 60, 60)
    path = tmp_path / "a.tar"
    members = [(f"{number}.{field}", body) for number in range(20)
               for field, body in (("jpg", photo), ("cls", b"1")) if (number, field) != (3, "cls")]  # fmt: skip
    datasets.write_shard(path, members)
    faults = [fault for batch in load(path, error_budget=0.1) for fault in batch.report]
    assert [(fault.key, fault.field, fault.fault_class) for fault in faults] == [("3", "label", "missing-field")]


def test_a_label_that_is_no_number(load, tmp_path) -> None:
    photo = datasets.photo(1, 60, 60)
    path = tmp_path / "a.tar"
    members = []
    for number in range(20):
        members += [(f"{number}.jpg", photo), (f"{number}.cls", b"cat" if number == 5 else b" 4\n")]
    datasets.write_shard(path, members)
    faults = [fault for batch in load(path, error_budget=0.1) for fault in batch.report]
    assert [(fault.key, fault.field, fault.fault_class) for fault in faults] == [("5", "label", "bad-value")]
