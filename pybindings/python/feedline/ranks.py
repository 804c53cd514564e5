"""Which rank this process is, of how many, and how many share its machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

#: (what to call it, rank, world size, local rank, local world size): the variables that launchers set. SLURM's are
#: those of a job step, which only srun sets: in a batch script outside srun one process is the whole world.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)  # fmt: skip

#: Most processes that share an epoch.
WORLD_SIZE_MAX = 2**32 - 1

#: Variables that together name one run on one machine, per launcher.
_RUN_NAMES = {
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    "Open MPI": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
    "SLURM": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
}


@dataclass(frozen=True)
class Rank:
    """This process's number among `world_size`, and where that was learnt."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} by {self.source}"


def check(rank: int | None, world_size: int | None) -> None:
    """Refuses a half-given or impossible pair of arguments."""
    if (rank is None) != (world_size is None):
        raise ValueError("give rank= and world_size= together, or neither to have them found")
    if rank is None or world_size is None:
        return
    if type(rank) is bool or not isinstance(rank, int) or type(world_size) is bool or not isinstance(world_size, int):
        raise TypeError(f"rank and world_size are ints, got {rank!r} and {world_size!r}")
    if world_size > WORLD_SIZE_MAX:
        raise ValueError(f"world_size must be at most {WORLD_SIZE_MAX}, got {world_size}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be 0 to world_size - 1, got rank {rank} of world_size {world_size}")


def find(rank: int | None = None, world_size: int | None = None, environ: Mapping[str, str] = os.environ) -> Rank:
    """The rank by arguments, else by an initialised ``torch.distributed``, else by a launcher's variables."""
    check(rank, world_size)
    if rank is not None and world_size is not None:
        return Rank(rank, world_size, "the arguments")
    # torch is asked only where someone has imported it: a process group needs that.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    for launcher, rank_name, world_name, _, _ in _LAUNCHERS:
        rank, world_size = _number(environ, rank_name), _number(environ, world_name)
        if rank is not None and world_size is not None:
            check(rank, world_size)
            return Rank(rank, world_size, f"{launcher}'s {rank_name} and {world_name}")
    return Rank(0, 1, "default")


@dataclass(frozen=True)
class Node:
    """The processes of one run on this machine: how many, and a name that only they share."""

    local_world_size: int
    run_name: str


def node(environ: Mapping[str, str] = os.environ) -> Node | None:
    """The run that this process is a local rank of, or None where a launcher started no more than one here."""
    for launcher, rank_name, _, _, local_name in _LAUNCHERS:
        # SLURM writes "4(x2),3": on this machine there are at most as many as the first number says.
        local_world_size = _number({local_name: environ.get(local_name, "").split("(")[0].split(",")[0]}, local_name)
        if rank_name in environ and local_world_size is not None and local_world_size > 1:
            words = [launcher, *(environ.get(name, "") for name in _RUN_NAMES[launcher])]
            return Node(local_world_size, blake2b("\0".join(words).encode(), digest_size=8).hexdigest())
    return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() else None
