"""Several nodes: each with a sidecar of its own, ranks joined by a process group, as launchers make them.

What nodes share is the plan and nothing else, so two sidecars on one machine are two nodes to everything but the network that
gradients take. The ranks meet over TCP, and step together: a rank with fewer batches would leave the others waiting.
"""

from __future__ import annotations

import json
import socket

import pytest

import feedline

pytest.importorskip("torch")

#: One rank: argv[2] is its world size, argv[3] its batch size, argv[4] the state to go on with, argv[5] the steps to take.
RANK = """
import torch, torch.distributed as distributed
rank, world_size, batch_size, steps = int(os.environ["GROUP_RANK"]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['STORE_PORT']}", rank=rank, world_size=world_size)
loader = load(sys.argv[1], batch_size=batch_size, tail="short")
state = json.loads(sys.argv[4])
if state: loader.load_state_dict(state)
taken, keys = 0, []
while taken < steps:
    for batch in loader:
        # Every rank is in the same step, or this never ends.
        total = torch.tensor([1])
        distributed.all_reduce(total)
        assert int(total) == world_size
        keys.append((batch.epoch, batch.position, batch.sample_keys))
        taken += 1
        if taken == steps: break
    state = loader.state_dict()
say(keys, state, loader._known()["sidecar_pid"], loader.trace_hash)
distributed.destroy_process_group()
"""


@pytest.fixture
def train(script, serve, dataset):
    """Trains for some steps on as many nodes as there are sidecars, and gives what the ranks say."""

    def start(nodes: int, ranks_a_node: int, batch_size: int, steps: int, state=None):
        sidecars = [serve("--workers", "1") for _ in range(nodes)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        world_size = nodes * ranks_a_node
        ranks = [
            script(
                RANK, dataset.pattern, str(world_size), str(batch_size), json.dumps(state), str(steps),
                env={"GROUP_RANK": str(rank), "STORE_PORT": port, "FEEDLINE_SOCKET": sidecars[rank // ranks_a_node].socket},
            )
            for rank in range(world_size)
        ]  # fmt: skip
        said = [rank.finish()[0][0] for rank in ranks]
        assert [one[2] for one in said] == [sidecars[rank // ranks_a_node].process.pid for rank in range(world_size)]
        return said

    return start


def by_step(said) -> list[tuple[int, int, list[str]]]:
    """What all ranks took in each step: epoch, and keys in global order."""
    assert len({len(keys) for keys, *_ in said}) == 1, "equal steps"
    return [(step[0][0], sum((keys for _, _, keys in step), [])) for step in zip(*(keys for keys, *_ in said), strict=True)]


def test_two_nodes_take_what_one_rank_would(train, load) -> None:
    said = train(2, 2, 6, 10)
    one = load(batch_size=24)
    expected = [(batch.epoch, batch.sample_keys) for _ in range(2) for batch in one]
    assert by_step(said) == expected
    assert feedline.merge_trace([trace for *_, trace in said]) == one.trace_hash
    for epoch in range(2):
        keys = [key for of, step in by_step(said) if of == epoch for key in step]
        assert len(keys) == len(set(keys)) == 100


def test_another_number_of_nodes_goes_on(train, load) -> None:
    one = load(batch_size=12)
    expected = [(batch.epoch, batch.sample_keys) for _ in range(2) for batch in one]
    first = train(2, 1, 6, 4)
    second = train(1, 1, 12, 3, feedline.merge_states([state for _, state, *_ in first]))
    third = train(3, 1, 4, 11, feedline.merge_states([state for _, state, *_ in second]))
    assert by_step(first) + by_step(second) + by_step(third) == expected
    assert feedline.merge_trace([trace for *_, trace in third]) == one.trace_hash
