"""Ranks that disagree are refused at the start, with both values: over a process group, and over a launcher's variables."""

from __future__ import annotations

import json
import os
import socket

import pytest

from feedline import agreement

#: Runs as rank argv[2] of two: options of its loader as JSON, what it does with it as code.
RANK = """
options, todo = json.loads(sys.argv[2]), sys.argv[3]
loader = load(sys.argv[1], **options)
try:
    exec(todo)
except ValueError as error:
    say("refused", str(error))
else:
    say("went on")
sys.stdin.readline()
"""

#: As above, in a process group over all ranks.
GROUP = """
import torch.distributed as distributed
distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['STORE_PORT']}",
                               rank=int(os.environ["GROUP_RANK"]), world_size=2)
"""


@pytest.fixture
def launch(script):
    """Starts two ranks, one after the other, and gives what each says."""
    made = 0

    def start(*ranks, kind):
        nonlocal made
        made += 1
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        started = []
        for rank, (shards, options, todo) in enumerate(ranks):
            env = {"torchrun": {
                "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                "TORCHELASTIC_RUN_ID": f"{os.getpid()}-{made}", "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
            }, "group": {"STORE_PORT": port, "GROUP_RANK": str(rank)}}[kind]  # fmt: skip
            code = (GROUP if kind == "group" else "") + RANK
            started.append(script(code, shards, json.dumps(options), todo, env=env, stdin=True))
            if kind == "torchrun":
                # The first rank is heard before the second starts, so that it is known who is refused.
                started[-1].said = started[-1].hear()
        said = [one.said if kind == "torchrun" else one.hear() for one in started]
        for one in started:
            one.process.stdin.write(b"\n")
            one.process.stdin.flush()
        for one in started:
            one.finish()
        return said

    return start


ITERATE = "for _batch in loader: pass"


@pytest.mark.parametrize(
    ("options", "todo", "words"),
    [
        ({"seed": 6}, ITERATE, "seed is 5 at rank 0 and 6 at rank 1"),
        ({"batch_size": 4}, ITERATE, "batch_size is 8 at rank 0 and 4 at rank 1"),
        ({"shuffle": False}, ITERATE, 'order is "global" at rank 0 and "sequential" at rank 1'),
        ({"tail": "drop"}, ITERATE, 'tail is "short" at rank 0 and "drop" at rank 1'),
        ({"indices": [1, 2, 3] * 8}, ITERATE, "positions of an epoch is 100 at rank 0 and 24 at rank 1"),
        ({}, "loader.set_epoch(3)\n" + ITERATE, "epoch is 0 at rank 0 and 3 at rank 1"),
        ({}, "loader.load_state_dict({**loader.state_dict(), 'position': 16})\n" + ITERATE, "position is 0 at rank 0 and 16 at rank 1"),
    ],
    ids=["seed", "batch size", "order", "tail", "subset", "epoch", "position"],
)
def test_disagreement_is_refused_with_both_values(launch, dataset, options, todo, words) -> None:
    first, second = launch((dataset.pattern, {}, ITERATE), (dataset.pattern, options, todo), kind="torchrun")
    assert first == ["went on"]
    assert second[0] == "refused" and words in second[1], second


def test_another_dataset_is_refused(launch, dataset, tmp_path) -> None:
    for name in ("part-000000.tar", "part-000001.tar"):
        (tmp_path / name).write_bytes(next(path for path in dataset.shards if path.name == name).read_bytes())
    said = launch((dataset.pattern, {"name": "train"}, ITERATE), (str(tmp_path / "part-*.tar"), {"name": "train"}, ITERATE), kind="torchrun")
    assert said[0] == ["went on"]
    assert "number of shards is 4 at rank 0 and 2 at rank 1" in said[1][1]


def test_datasets_of_other_names_are_refused(launch, dataset, tmp_path) -> None:
    other = tmp_path / "other.tar"
    other.write_bytes(dataset.shards[0].read_bytes())
    said = launch((dataset.pattern, {}, ITERATE), (str(other), {}, ITERATE), kind="torchrun")
    assert said[0] == ["went on"]
    assert 'dataset is "part-{000000..000003}.tar" at rank 0 and "other.tar" at rank 1' in said[1][1]
    assert "or name= to loaders that not every rank has" in said[1][1]


def test_another_world_size_is_refused(launch, dataset) -> None:
    said = launch(
        (dataset.pattern, {}, ITERATE), (dataset.pattern, {"rank": 1, "world_size": 3}, ITERATE), kind="torchrun"
    )
    assert "world_size is 2 at rank 0 and 3 at rank 1" in said[1][1]


def test_ranks_that_agree_go_on(launch, dataset) -> None:
    # A look at the first batch, by one rank alone, is nothing to disagree about.
    todo = f"next(iter(loader)); next(iter(loader))\n{ITERATE}\nfor _batch in loader: pass"
    both = launch((dataset.pattern, {}, todo), (dataset.pattern, {}, f"{ITERATE}\nfor _batch in loader: pass"), kind="torchrun")
    assert both == [["went on"], ["went on"]]


def test_a_process_group_is_where_nodes_meet(launch, dataset) -> None:
    said = launch((dataset.pattern, {}, ITERATE), (dataset.pattern, {"seed": 6}, ITERATE), kind="group")
    assert sorted(one[0] for one in said) == ["refused", "went on"]
    assert any("seed is" in one[-1] and "5 at rank 0" in one[-1] for one in said), said
    assert launch((dataset.pattern, {}, ITERATE), (dataset.pattern, {}, ITERATE), kind="group") == [["went on"]] * 2


def test_files_of_runs_that_are_over_are_swept(tmp_path) -> None:
    kept = agreement.FileMeeting(tmp_path / "run-a.ranks")
    assert kept.first("x", "1") == "1"
    assert agreement.FileMeeting(tmp_path / "run-a.ranks").first("x", "2") == "1"
    (tmp_path / "run-b.ranks").write_text("")
    agreement.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run-a.ranks"]


def test_one_rank_compares_nothing(load) -> None:
    assert agreement.meeting() is None
    for seed in (1, 2):
        assert len(list(load(seed=seed))) == 13
