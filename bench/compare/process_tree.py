"""Runs a program and counts the processor time of everything that it starts, sidecars included.

This process becomes the reaper of orphans, so a sidecar that outlives its trainer is waited for here too, and the
kernel's own accounts of all reaped processes add up to the whole tree: nothing is sampled, no root is needed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

PR_SET_CHILD_SUBREAPER = 36

#: What is left of a tree this long after its first process ended is ended too, and said.
STRAGGLERS_S = 30.0


@dataclass
class Outcome:
    """One run of a program."""

    stdout: str
    stderr: str
    status: int
    cpu_s: float
    stragglers: int


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of orphans")


def run(command: list[str], cores: set[int], environment: dict[str, str]) -> Outcome:
    """Runs `command` on `cores` to the end of its last descendant; needs `adopt_orphans`, and no other children."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, sorted(cores))), *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
        status, cpu_s, stragglers = _reap(child.pid)
        child.returncode = status
        stdout.seek(0)
        stderr.seek(0)
        return Outcome(stdout.read().decode(), stderr.read().decode(errors="replace"), status, cpu_s, stragglers)


def _reap(first: int) -> tuple[int, float, int]:
    """(exit status of `first`, processor seconds of all children, how many had to be ended)."""
    status, cpu_s, stragglers, deadline = 0, 0.0, 0, float("inf")
    while True:
        try:
            pid, code, usage = os.wait4(-1, os.WNOHANG if deadline < float("inf") else 0)
        except ChildProcessError:
            return status, cpu_s, stragglers
        if pid == 0:
            if time.monotonic() > deadline:
                for child in _children():
                    stragglers += 1
                    os.kill(child, signal.SIGKILL)
                deadline = time.monotonic() + STRAGGLERS_S
            time.sleep(0.01)
            continue
        cpu_s += usage.ru_utime + usage.ru_stime
        if pid == first:
            status = os.waitstatus_to_exitcode(code)
            deadline = time.monotonic() + STRAGGLERS_S


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]
