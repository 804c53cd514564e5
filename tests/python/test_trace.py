"""The trace of a run: one hash for the same samples and parameters, whatever the ranks, threads and interruptions."""

from __future__ import annotations

import copy
import json
import random

import datasets
import pytest

import feedline
from feedline import trace


def run(loader, epochs: int = 1) -> str:
    for _ in range(epochs):
        for _batch in loader:
            pass
    return loader.trace_hash


def world(load, world_size: int, global_batch: int = 12, epochs: int = 1, **options) -> str:
    """The merged trace of all ranks."""
    loaders = [
        load(rank=rank, world_size=world_size, batch_size=global_batch // world_size, **options)
        for rank in range(world_size)
    ]
    return feedline.merge_trace([run(loader, epochs) for loader in loaders])


def test_nothing_consumed_is_zero(load) -> None:
    loader = load()
    assert loader.trace_hash == "0" * 32
    loader.peek()
    next(iter(loader))
    assert loader.trace_hash == "0" * 32, "a look at the first batch consumes nothing"


@pytest.mark.parametrize("tail", ["short", "pad", "drop"])
def test_world_sizes_agree(load, tail) -> None:
    expected = world(load, 1, tail=tail, epochs=2)
    assert [world(load, size, tail=tail, epochs=2) for size in (2, 3, 4)] == [expected] * 3


def test_padding_is_left_out(load) -> None:
    # 100 samples: batches of 12 need 8 repeats, batches of 16 need 12.
    assert world(load, 2, 12, tail="pad") == world(load, 4, 16, tail="pad") == world(load, 1, 12, tail="short")


@pytest.mark.parametrize("options", [("--workers", "1"), ("--workers", "4"), ("--workers", "2", "--reader", "pread")], ids=" ".join)
def test_threads_and_readers_agree(load, serve, options) -> None:
    assert run(load(sidecar=serve(*options).socket), 2) == run(load(), 2)


def test_batch_sizes_agree(load) -> None:
    assert run(load(batch_size=7)) == run(load(batch_size=50))


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 6},
        {"shuffle": False},
        {"fields": {"image": feedline.Image("jpg", feedline.RandomResizedCrop(32, scale=(0.5, 0.6))), "label": feedline.Int("cls")}},
        {"indices": list(range(99))},
    ],
    ids=["seed", "order", "parameters", "samples"],
)
def test_what_differs_shows(load, other) -> None:
    image = feedline.Image("jpg", feedline.RandomResizedCrop(32))
    base = load(fields={"image": image, "label": feedline.Int("cls")})
    loader = load(**{"fields": {"image": image, "label": feedline.Int("cls")}, **other})
    assert run(base) != run(loader)


def test_epochs_differ(load) -> None:
    first, second = load(), load()
    second.set_epoch(1)
    assert run(first) != run(second)
    both = load()
    assert run(both, 2) == feedline.merge_trace([first.trace_hash, second.trace_hash])


def interrupted(load, plan: list[tuple[int, int]], global_batch: int, **options) -> str:
    """The merged trace of a run of three epochs that is cut after so many steps at such a world size, again and again."""
    state = None
    total = 3 * -(-100 // global_batch)
    done = 0
    for steps, world_size in [*plan, (total, plan[-1][1] % 3 + 1)]:
        loaders = [
            load(rank=rank, world_size=world_size, batch_size=global_batch // world_size, **options)
            for rank in range(world_size)
        ]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        for loader in loaders:
            left = min(steps, total - done)
            while left:
                iterator = iter(loader)
                for _batch in iterator:
                    left -= 1
                    if left == 0:
                        break
                # The state is taken within the loop, as a training script does.
                kept = json.loads(json.dumps(loader.state_dict()))
                del iterator
            loader.kept = kept
        done += min(steps, total - done)
        state = feedline.merge_states([loader.kept for loader in loaders])
    return state["trace"]["hash"]


@pytest.mark.parametrize("seed", range(6))
def test_random_interruptions_leave_the_trace(load, seed) -> None:
    draw = random.Random(seed)
    expected = world(load, 1, 12, epochs=3)
    plan = [(draw.randint(1, 9), draw.choice([1, 2, 3, 4])) for _ in range(2)]
    assert interrupted(load, plan, 12) == expected, plan


def test_a_substitute_is_what_counts(load, tmp_path) -> None:
    damaged = datasets.write(tmp_path, 100, 4, {5: b"this is no photo"})

    def replaced() -> str:
        return run(load(damaged.pattern, on_error="replace", error_budget=0.5))

    assert replaced() == replaced()
    assert replaced() != run(load())


def test_another_ranks_state_has_no_trace(load) -> None:
    first = load(rank=0, world_size=2)
    iterator = iter(first)
    next(iterator), next(iterator)
    state = first.state_dict()
    assert state["trace"]["rank"] == 0
    second = load(rank=1, world_size=2)
    second.load_state_dict(state)
    with pytest.raises(ValueError, match="merge_states"):
        _ = second.trace_hash
    assert second.state_dict()["trace"] is None
    run_on = load(rank=0, world_size=2)
    run_on.load_state_dict(state)
    assert run_on.trace_hash == first.trace_hash


def test_states_of_before_a_run_are_any_ranks(load) -> None:
    states = [load(rank=rank, world_size=2).state_dict() for rank in range(2)]
    merged = feedline.merge_states(states)
    assert merged == states[0]
    loader = load()
    loader.load_state_dict(merged)
    assert run(loader) == run(load())


def test_a_copy_goes_on(load) -> None:
    loader = load()
    run(loader)
    other = copy.deepcopy(loader)
    assert other.trace_hash == loader.trace_hash
    assert run(other) == run(loader)


def test_merging_refuses_what_does_not_fit(load) -> None:
    loaders = [load(rank=rank, world_size=2) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    states = []
    for loader, iterator in zip(loaders, iterators, strict=True):
        next(iterator), next(iterator)
        states.append(loader.state_dict())
    assert feedline.merge_states(reversed(states)) == feedline.merge_states(states)
    for wrong, words in [
        ([], "got none"),
        (states[:1], r"these 1 are of \(rank, world size\) \(0, 2\)"),
        ([states[0], states[0]], "each rank once"),
        ([states[0], {**states[1], "position": 8}], "differ in 'position'"),
    ]:
        with pytest.raises(ValueError, match=words):
            feedline.merge_states(wrong)
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        feedline.merge_trace(["xyz"])
    with pytest.raises(TypeError, match="as a list"):
        feedline.merge_trace("0" * 32)
    with pytest.raises(ValueError, match="hash, rank and world_size"):
        load().load_state_dict({**states[0], "trace": {"hash": "0" * 32}})


def test_sums_do_not_depend_on_order() -> None:
    draw = random.Random(1)
    parts = [trace.to_text((draw.getrandbits(64), draw.getrandbits(64))) for _ in range(20)]
    whole = feedline.merge_trace(parts)
    draw.shuffle(parts)
    assert feedline.merge_trace([feedline.merge_trace(parts[:7]), feedline.merge_trace(parts[7:])]) == whole
