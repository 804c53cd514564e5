"""Deaths at random moments: trainers, ranks and sidecars that are killed, stopped, interrupted, or end without a word.

Rounds are drawn from a seed, FEEDLINE_DEATHS of them (a short run by default; FEEDLINE_DEATHS_SEED draws others). After each,
those that live have what is theirs, to the hash, and nothing of the dead is left: no memory, descriptor, thread, file or process.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Sidecar, wait_gone, within
from test_processes import descriptors, memfd_bytes

import feedline

ROUNDS = int(os.environ.get("FEEDLINE_DEATHS", "14"))
SEED = int(os.environ.get("FEEDLINE_DEATHS_SEED", "0"))

#: How a trainer ends: by a signal, or by its own code.
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}
OWN_ENDS = {"exception": "raise RuntimeError('mine')", "exit": "sys.exit(0)", "hard exit": "os._exit(1)"}

#: Takes batches until it is told how to end, and holds some of them.
TRAINER = """
import select
loader = load(sys.argv[1], slots=6, workers=1)
say(loader._known()["sidecar_pid"])
held = []
while True:
    for batch in loader:
        held = [*held[-2:], batch["image"]]
        if select.select([sys.stdin], [], [], 0)[0]:
            exec(sys.stdin.readline())
"""

#: Takes three epochs, and resumes where it was when its sidecar is gone, up to argv[2] times.
SURVIVOR = """
loader = load(sys.argv[1], slots=6, timeout=float(sys.argv[3]))
left, stalls, epochs = int(sys.argv[2]), 0, 3
say("ready")
while loader.epoch < epochs:
    try:
        for batch in loader:
            time.sleep(0.002)
    except feedline.StallError:
        stalls += 1
        if stalls > 30: raise
        loader.load_state_dict(loader.state_dict())
    except feedline.SidecarExitError:
        left -= 1
        if left < 0: raise
        loader.load_state_dict(loader.state_dict())
        say("lost")
        sys.stdin.readline()
say("trace", loader.trace_hash, stalls)
"""


@dataclass
class Figures:
    """What a process has that a dead client could leave behind."""

    descriptors: int
    memfd_bytes: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Figures:
        return cls(descriptors(pid), memfd_bytes(pid), len(os.listdir(f"/proc/{pid}/task")))


def trace_of(dataset, epochs: int = 3, **options) -> str:
    fields = {
        "image": feedline.Image(["jpg"], feedline.RandomResizedCrop(32), feedline.RandomHorizontalFlip()),
        "label": feedline.Int("cls"),
    }
    loader = feedline.Loader(dataset.pattern, batch_size=8, shuffle=True, seed=5, fields=fields, **options)
    for _ in range(epochs):
        for _batch in loader:
            pass
    loader.close()
    return loader.trace_hash


class Rounds:
    """One round, beside a service that outlives them all."""

    def __init__(self, script, bystander: Bystander, dataset, draw: random.Random, folder: Path) -> None:
        self.script, self.service, self.expected = script, bystander.service, bystander.expected
        self.dataset, self.draw, self.folder = dataset, draw, folder

    def trainer(self, socket: str | None):
        """A trainer that runs, and the process of its sidecar."""
        env = {} if socket is None else {"FEEDLINE_SOCKET": socket}
        one = self.script(TRAINER, self.dataset.pattern, env=env, stdin=True)
        (sidecar_pid,) = one.hear()
        time.sleep(self.draw.random() * 0.2)
        return one, sidecar_pid

    def end(self, one, how: str) -> None:
        """Ends a trainer; one that is stopped stays so for a while, and is killed."""
        if how in OWN_ENDS:
            one.process.stdin.write(OWN_ENDS[how].encode() + b"\n")
            one.process.stdin.flush()
        else:
            one.process.send_signal(SIGNALS[how])
        if how == "stop":
            # The others do not notice it.
            assert trace_of(self.dataset, sidecar=self.service.socket) == self.expected
            one.process.kill()
        one.process.wait(timeout=20)

    def a_trainer_dies(self, how: str) -> None:
        one, pid = self.trainer(self.service.socket)
        assert pid == self.service.process.pid
        self.end(one, how)

    def a_private_trainer_dies(self, how: str) -> None:
        one, pid = self.trainer(None)
        self.end(one, how)
        assert wait_gone(pid, 10), "the private sidecar ends with its trainer"

    def a_rank_dies(self, how: str) -> None:
        ranks = [
            self.script(
                SURVIVOR if rank == 0 else TRAINER, self.dataset.pattern, "0", "60", stdin=True,
                env={"RANK": str(rank), "WORLD_SIZE": "2", "FEEDLINE_SOCKET": self.service.socket},
            )
            for rank in range(2)
        ]  # fmt: skip
        for rank in ranks:
            rank.hear()
        time.sleep(self.draw.random() * 0.2)
        self.end(ranks[1], how)
        _word, found, _stalls = ranks[0].hear()
        ranks[0].finish()
        assert found == trace_of(self.dataset, sidecar=self.service.socket, rank=0, world_size=2)

    def a_service_dies(self, how: str) -> None:
        """It is killed, or stopped and goes on: its trainer has every row once."""
        folder = self.folder / f"{self.draw.random()}"
        folder.mkdir()
        service = Sidecar(folder, "--workers", "1")
        try:
            # A stopped sidecar shows as a wait without progress.
            timeout = "1" if how == "stop" else "60"
            one = self.script(SURVIVOR, self.dataset.pattern, "1", timeout, env={"FEEDLINE_SOCKET": service.socket}, stdin=True)
            one.hear()
            time.sleep(self.draw.random() * 0.2)
            if how == "stop":
                service.process.send_signal(signal.SIGSTOP)
                time.sleep(0.5 + self.draw.random())
                service.process.send_signal(signal.SIGCONT)
            else:
                service.kill(SIGNALS[how])
                said = one.hear()
                if said == ["lost"]:
                    service = Sidecar(folder, "--workers", "1")  # On the same socket, with nothing to clean up.
                    one.process.stdin.write(b"\n")
                    one.process.stdin.flush()
                else:
                    # It had all of its batches before.
                    assert said[:2] == ["trace", self.expected]
                    return
            _word, found, _stalls = one.hear()
            one.finish()
            assert found == self.expected
        finally:
            service.kill()

    def a_private_sidecar_dies(self, how: str) -> None:
        """The next iteration starts another one."""
        one = self.script(
            SURVIVOR.replace('say("lost")\n        sys.stdin.readline()', "pass")
            .replace('say("ready")', 'say(loader._known()["sidecar_pid"])'),
            self.dataset.pattern, "1", "60", stdin=True,
        )  # fmt: skip
        (pid,) = one.hear()
        time.sleep(self.draw.random() * 0.1)
        os.kill(pid, SIGNALS[how])
        _word, found, _stalls = one.hear()
        one.finish()
        assert found == self.expected


MATRIX = [
    *[("a_trainer_dies", how) for how in (*SIGNALS, *OWN_ENDS)],
    *[("a_private_trainer_dies", how) for how in (*SIGNALS, *OWN_ENDS)],
    *[("a_rank_dies", how) for how in (*SIGNALS, *OWN_ENDS)],
    *[("a_service_dies", how) for how in ("kill", "terminate", "interrupt", "stop")],
    *[("a_private_sidecar_dies", how) for how in ("kill",)],
]


def plan() -> list[tuple[str, str]]:
    """Every kind of death in turn, in an order of this seed."""
    draw, rounds = random.Random(SEED), []
    while len(rounds) < ROUNDS:
        rounds += draw.sample(MATRIX, len(MATRIX))
    return rounds[:ROUNDS]


@dataclass
class Bystander:
    """The service that lives through all rounds, and what it had before the first.

    Attributes:
        expected: The trace of three epochs of one rank.
    """

    service: Sidecar
    expected: str
    before: Figures


@pytest.fixture(scope="module")
def bystander(dataset, tmp_path_factory) -> Iterator[Bystander]:
    service = Sidecar(tmp_path_factory.mktemp("service"), "--workers", "1")
    pid = service.process.pid
    expected = trace_of(dataset, sidecar=service.socket)
    assert within(10, lambda: memfd_bytes(pid) == 0)
    yield Bystander(service, expected, Figures.of(pid))
    service.kill()


def sockets_left() -> set[Path]:
    """The sockets of private sidecars."""
    return set(Path(os.environ["XDG_RUNTIME_DIR"], "feedline").glob("*.sock"))


@pytest.mark.parametrize(("number", "kind", "how"), [(number, *death) for number, death in enumerate(plan())])
def test_a_death_at_a_random_moment(number, kind, how, script, bystander, dataset, tmp_path) -> None:
    shared_memory, sockets, mine = set(os.listdir("/dev/shm")), sockets_left(), Figures.of(os.getpid())
    draw = random.Random(f"{SEED} {number}")
    getattr(Rounds(script, bystander, dataset, draw, tmp_path), kind)(how)
    pid = bystander.service.process.pid
    assert within(10, lambda: Figures.of(pid) == bystander.before), f"{Figures.of(pid)}, before {bystander.before}"
    assert trace_of(dataset, sidecar=bystander.service.socket) == bystander.expected, "the service serves on"
    assert within(10, lambda: Figures.of(pid) == bystander.before), f"{Figures.of(pid)}, before {bystander.before}"
    assert set(os.listdir("/dev/shm")) == shared_memory
    left = Figures.of(os.getpid())
    # What an earlier round still had may have ended in this one.
    assert left.memfd_bytes <= mine.memfd_bytes
    assert left.threads <= mine.threads
    # The socket of a killed private sidecar is swept when another one starts a minute later.
    assert len(sockets_left() - sockets) <= (kind == "a_private_sidecar_dies")
