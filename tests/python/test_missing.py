"""Samples that lack a field: bad ones, or left out by missing="drop"."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from datasets import write_shard

import feedline

LABEL = feedline.Int("cls")
TEXT = feedline.Text("txt")


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """30 samples in 3 shards. Of each ten, number 3 has no label, number 7 no text, number 8 neither of them."""
    paths = [tmp_path / f"s-{shard}.tar" for shard in range(3)]
    for shard, path in enumerate(paths):
        members = []
        for number in range(shard * 10, shard * 10 + 10):
            members.append((f"{number:02}.jpg", datasets.photo(number, 40, 30)))
            if number % 10 not in (3, 8):
                members.append((f"{number:02}.cls", str(number).encode()))
            if number % 10 not in (7, 8):
                members.append((f"{number:02}.txt", b"text"))
        write_shard(path, members)
    return paths


def numbers(loader: feedline.Loader) -> list[int]:
    return [int(key) for batch in loader for key in batch.sample_keys]


def without(*lacking: int) -> list[int]:
    return [number for number in range(30) if number % 10 not in lacking]


@pytest.mark.parametrize(
    ("missing", "lacking"),
    [("drop", (3, 7, 8)), ({"label": "drop", "text": "drop"}, (3, 7, 8)), ({"label": "drop"}, (3, 8)), ({"text": "drop"}, (7, 8))],
)
def test_samples_without_a_field_are_left_out(load, shards, caplog, missing, lacking) -> None:
    fields = {"label": LABEL, "text": TEXT}
    if missing == {"label": "drop"}:
        fields["text"] = feedline.Text("txt", default="none")
    if missing == {"text": "drop"}:
        fields["label"] = feedline.Int("cls", default=-1)
    expected = without(*lacking)
    options = {"fields": fields, "missing": missing, "on_error": "raise", "batch_size": 4}
    with caplog.at_level(logging.INFO, logger="feedline"):
        assert numbers(load(shards, shuffle=False, **options)) == expected
    words = caplog.text
    count = 30 - len(expected)
    assert f"{count} of 30 samples lack a field" in words and "missing-field" in words and f"{count} without a field" in words
    if "label" in missing or missing == "drop":
        assert f'field "label", none of cls: 6, the first: {shards[0]}, key "03"' in words
    # All others keep their relative order: that of a loader in which nothing is left out.
    whole = numbers(load(shards, shuffle=True, fields={"image": feedline.Bytes("jpg")}))
    assert sorted(whole) == list(range(30))
    assert numbers(load(shards, shuffle=True, **options)) == [number for number in whole if number in expected]


def test_they_are_left_out_alike_over_ranks_orders_and_lists(load, shards, tmp_path) -> None:
    expected = without(3, 7, 8)
    options = {"fields": {"label": LABEL, "text": TEXT}, "missing": "drop", "on_error": "raise", "batch_size": 2}
    for order in ("global", "block", "sequential"):
        ranks = [numbers(load(shards, shuffle=None, order=order, rank=rank, world_size=3, **options)) for rank in range(3)]
        assert sorted(number for one in ranks for number in one) == expected, order
    assert sorted(numbers(load(shards, shuffle=True, indices=list(range(5, 25)), **options))) == [n for n in expected if 5 <= n < 25]
    # With a quarantine, one of whose samples lacks a field too.
    quarantine = tmp_path / "list.jsonl"
    quarantine.write_text("".join(json.dumps({"shard": str(shards[0]), "key": key}) + "\n" for key in ("02", "03")))
    loader = load(shards, shuffle=True, quarantine=quarantine, **options)
    assert sorted(numbers(loader)) == [number for number in expected if number != 2]
    assert (loader._known()["quarantined"], loader._known()["dropped"]) == (2, 8)
    mix = feedline.Mix([([str(shards[0])], 1), ([str(path) for path in shards[1:]], 2)], stop="all")
    assert set(numbers(load(mix, shuffle=True, **options))) == set(expected)


def test_a_resume_is_exact_and_asks_for_the_same_rule(load, shards) -> None:
    options = {"fields": {"label": LABEL, "text": TEXT}, "on_error": "raise", "batch_size": 2}
    loader = load(shards, missing="drop", **options)
    whole = numbers(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = load(shards, missing="drop", **options)
    resumed.load_state_dict(state)
    assert numbers(resumed) == whole[8:]
    with pytest.raises(ValueError, match=r"drops samples without \['label', 'text'\], this one drops those without \[\]"):
        load(shards, **options).load_state_dict(state)


def test_rows_of_a_table_count_as_fields(load, shards, tmp_path) -> None:
    table = tmp_path / "labels.jsonl"
    rows = [{"key": f"{number:02}", "age": None if number == 4 else number} for number in range(25)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"fields": {"age": feedline.Int("age")}, "labels": table, "shuffle": False}
    assert numbers(load(shards, missing="drop", **options)) == [number for number in range(25) if number != 4]
    with pytest.raises(feedline.SampleError, match="missing-field"):
        numbers(load(shards, **options))


def test_nothing_lacks_and_everything_lacks(load, shards, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="feedline"):
        assert numbers(load(shards, fields={"image": feedline.Bytes("jpg")}, missing="drop", shuffle=False)) == list(range(30))
    assert "lack a field" not in caplog.text and "without a field" not in caplog.text
    half = [shards[0].with_name("a.tar"), shards[0].with_name("b.tar")]
    write_shard(half[0], [("1.cls", b"1")])
    write_shard(half[1], [("2.txt", b"2")])
    with pytest.raises(ValueError, match=r'no sample is left: .*missing="drop"'):
        numbers(load(half, fields={"label": LABEL, "text": TEXT}, missing="drop"))


@pytest.mark.parametrize(
    ("missing", "error", "words"),
    [
        ("skip", ValueError, "missing must be"),
        ({"lable": "drop"}, ValueError, "names 'lable', which is no field; the fields are label, text"),
        ({"label": "skip"}, ValueError, r"missing\['label'\] must be"),
        (["label"], TypeError, "missing must be"),
        ({"text": "drop"}, ValueError, "field 'text' has a default"),
    ],
)
def test_wrong_rules(missing, error, words) -> None:
    fields = {"label": LABEL, "text": feedline.Text("txt", default="")}
    with pytest.raises(error, match=words):
        feedline.Loader(__file__, fields=fields, missing=missing)


def test_a_default_goes_before_the_word_for_all(load: Callable[..., feedline.Loader], shards) -> None:
    fields = {"label": feedline.Int("cls", default=-1), "text": TEXT}
    assert numbers(load(shards, fields=fields, missing="drop", shuffle=False)) == without(7, 8)
