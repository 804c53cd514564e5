"""Ranks by arguments, torch.distributed and launchers."""

from __future__ import annotations

import pytest

from feedline import ranks


@pytest.mark.parametrize(
    ("environ", "rank", "world_size", "source"),
    [
        ({}, 0, 1, "default"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8, "torchrun"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, 1, 4, "SLURM"),
        # A batch script outside srun: SLURM tells of the job's tasks, but this is one process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 1, "default"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, 2, 3, "Open MPI"),
        # torchrun inside a SLURM step.
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, 0, 2, "torchrun"),
        ({"RANK": "3"}, 0, 1, "default"),
        ({"RANK": "x", "WORLD_SIZE": "y"}, 0, 1, "default"),
    ],
)
def test_launchers(environ, rank, world_size, source) -> None:
    found = ranks.find(environ=environ)
    assert (found.rank, found.world_size) == (rank, world_size)
    assert source in found.source


def test_arguments_come_first() -> None:
    assert ranks.find(1, 2, {"RANK": "3", "WORLD_SIZE": "8"}) == ranks.Rank(1, 2, "the arguments")


def test_a_process_group_comes_before_variables(tmp_path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        found = ranks.find(environ={"RANK": "3", "WORLD_SIZE": "8"})
    finally:
        distributed.destroy_process_group()
    assert found == ranks.Rank(0, 1, "torch.distributed")


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="world_size - 1"):
        ranks.find(environ={"RANK": "8", "WORLD_SIZE": "8"})


TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("environ", "local_world_size"),
    [
        ({}, None),
        ({"RANK": "0", "LOCAL_WORLD_SIZE": "1"}, None),
        (TORCHRUN, 4),
        ({"SLURM_PROCID": "5", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_JOB_ID": "1"}, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "4"}, None),
    ],
)
def test_local_ranks(environ, local_world_size) -> None:
    node = ranks.node(environ)
    assert (node and node.local_world_size) == local_world_size


def test_a_run_has_one_name_and_a_restart_another() -> None:
    first, second = ranks.node(TORCHRUN), ranks.node({**TORCHRUN, "RANK": "2", "LOCAL_RANK": "2"})
    restarted = ranks.node({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert first == second != restarted
