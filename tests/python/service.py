"""What tests of the service need: its protocol in Python, a service manager's sockets, threads that stand still."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "feedline"]

#: As `loader/src/serve/protocol.rs` has it.
PROTOCOL = 1


class Raw:
    """A client that speaks the protocol by hand."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(path)

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def hello(self) -> dict[str, Any]:
        """Says hello; the answer, which may be a refusal that was quicker."""
        with suppress(BrokenPipeError):
            self.send({"type": "hello", "protocol": PROTOCOL, "version": "test"})
        answer = self.receive()
        assert answer is not None, "an answer, before the end"
        return answer

    def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end of the connection."""
        header = self._exactly(4)
        return None if header is None else json.loads(self._exactly(struct.unpack("<I", header)[0]) or b"null")

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            with suppress(ConnectionResetError):
                if part := self.socket.recv(count - len(data)):
                    data += part
                    continue
            return None
        return data

    def close(self) -> None:
        self.socket.close()


def status(path: str) -> dict[str, Any]:
    """What ``feedline status --json`` says of the sidecar at `path`."""
    done = subprocess.run([*COMMAND, "status", "--json", "--socket", path], capture_output=True, timeout=60, check=True)
    (told,) = json.loads(done.stdout)["sidecars"]
    return told  # type: ignore[no-any-return]


def threads(pid: int, prefix: str) -> list[int]:
    """The threads of process `pid` whose names begin with `prefix`."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith(prefix):
            found.append(int(task.name))
    return found


_SEIZE, _INTERRUPT, _DETACH, _ALL = 0x4206, 0x4207, 17, 0x40000000


class Frozen:
    """Threads of a process of ours that stand still until they are let go of."""

    def __init__(self, pid: int, prefix: str) -> None:
        self._ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._threads = threads(pid, prefix)
        assert self._threads, f"process {pid} has no thread {prefix}*"
        for thread in self._threads:
            if self._ptrace(_SEIZE, thread, None, None) != 0:
                pytest.skip(f"no thread can be stopped here: {os.strerror(ctypes.get_errno())}")
            self._ptrace(_INTERRUPT, thread, None, None)
            os.waitpid(thread, _ALL)

    def thaw(self) -> None:
        """The threads go on."""
        for thread in self._threads:
            self._ptrace(_DETACH, thread, None, None)
        self._threads = []

    def bury(self) -> None:
        """Waits until they have ended with their process, whose end is told only then."""
        for thread in self._threads:
            with suppress(ChildProcessError):
                while not os.WIFEXITED(end := os.waitpid(thread, _ALL)[1]) and not os.WIFSIGNALED(end):
                    self._ptrace(_DETACH, thread, None, None)
        self._threads = []


@contextmanager
def frozen(pid: int, prefix: str) -> Iterator[Frozen]:
    """The threads of process `pid` whose names begin with `prefix` stand still."""
    stopped = Frozen(pid, prefix)
    try:
        yield stopped
    finally:
        stopped.thaw()
