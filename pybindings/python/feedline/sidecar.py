"""Where the sidecar is: the one that the user names, or a private one that this process starts.

A private sidecar serves all loaders of a process, or of all local ranks of a run; it ends by itself when the last
connection to it is closed. It is a freshly started program, never a fork of the trainer.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import secrets
import select
import shutil
import signal
import socket as sockets
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import _native, forks, ranks
from .errors import LoaderError, SidecarExitError, StallError

logger = logging.getLogger("feedline")

#: A private sidecar is ready within this many seconds, or something is wrong with the machine.
START_TIMEOUT_S = 60.0

#: Longest path of a Unix socket, in bytes.
_SOCKET_PATH_BYTES_MAX = 107

#: A socket file that refuses connections is nobody's after this long; a fresh one may not be listening yet.
_STALE_AFTER_S = 60.0


#: A sidecar that has closed its sockets has ended within this many seconds.
_END_TIMEOUT_S = 2.0


@dataclass
class _Private:
    """A private sidecar, as this process sees it.

    Attributes:
        socket: Where it listens.
        anchor: The connection that keeps it alive; None in a forked child that has not connected yet.
        process: The program, where this process started it.
        workers: Its decode threads as asked for, None for its own choice.
        limits: Its options for memory as asked for.
    """

    socket: str
    anchor: _native.Anchor | None
    process: subprocess.Popen[bytes] | None
    workers: int | None
    limits: tuple[str, ...] = ()


_private: _Private | None = None
_lock = threading.Lock()
_is_registered = False


def locate(sidecar: str | None, workers: int | None, limits: tuple[str, ...] = ()) -> str:
    """The socket of the sidecar to use: `sidecar`, else ``FEEDLINE_SOCKET``, else that of a private one."""
    named = sidecar or os.environ.get("FEEDLINE_SOCKET")
    if not named:
        return _locate_private(workers, limits)
    if limits:
        logger.info("%s has no effect: the sidecar at %s has options of its own", _words(limits), named)
    if workers is not None:
        logger.info("workers=%d has no effect: the sidecar at %s has threads of its own", workers, named)
    return named


def is_named(sidecar: str | None) -> bool:
    """Whether the user names a sidecar, so that none is started."""
    return bool(sidecar or os.environ.get("FEEDLINE_SOCKET"))


def _words(limits: tuple[str, ...]) -> str:
    return ", ".join(f"{name.removeprefix('--')}={size}" for name, size in zip(limits[::2], limits[1::2], strict=True))


def _locate_private(workers: int | None, limits: tuple[str, ...]) -> str:
    global _private
    with _lock:
        if _private is not None and not _is_usable(_private):
            _private = None
        if _private is None:
            _register()
            node = ranks.node()
            _private = _start(_new_path(), workers, limits) if node is None else _elect(node, workers, limits)
        elif workers is not None and workers != _private.workers:
            logger.info("workers=%d has no effect: this process's private sidecar is running already", workers)
        if limits and limits != _private.limits:
            logger.info("%s has no effect: this process's private sidecar is running already", _words(limits))
        return _private.socket


def _is_usable(private: _Private) -> bool:
    if private.anchor is None:
        with suppress(LoaderError, OSError):
            private.anchor = _native.Anchor(private.socket)
    if private.anchor is not None and private.anchor.is_alive():
        return True
    if private.process is not None:
        # It has closed its sockets, so it is dead or about to be: take its status, so that no zombie stays.
        with suppress(subprocess.TimeoutExpired):
            private.process.wait(timeout=_END_TIMEOUT_S)
    return False


def explain(error: SidecarExitError, socket: str) -> None:
    """Adds to `error` how the sidecar at `socket` ended, where this process started it."""
    private = _private
    if private is None or private.socket != socket or private.process is None:
        return
    with suppress(subprocess.TimeoutExpired):
        error.args = (f"{error}; {_ended(private.process.wait(timeout=_END_TIMEOUT_S))}",)


def _ended(status: int) -> str:
    """Words for the exit status of a sidecar that should have lived on."""
    if status >= 0:
        return f"it ended with status {status}: its reasons are on standard error"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = {
        "SIGKILL": ": so ends what takes too much memory, as the kernel's log or the control group's memory.events tell",
        "SIGABRT": ": its last words, of missing memory or of a bug in Feedline, are on standard error",
    }.get(name, "")
    return f"{name} ended it{hint}"


def _after_fork() -> None:
    """In a forked child: closes the parent's anchor; the child connects to the same sidecar when it needs one."""
    global _lock
    _lock = threading.Lock()
    if _private is not None:
        _private.anchor = None
        if _private.process is not None:
            _private.process.returncode = 0  # The parent's child, not this one's: nobody here may wait for it.
            _private.process = None


def _register() -> None:
    global _is_registered
    if not _is_registered:
        forks.call_in_child(_after_fork)
        atexit.register(_at_exit)
        _is_registered = True


def _at_exit() -> None:
    if _private is not None and _private.process is not None:
        # It outlives this process by its grace period, by design: Popen need not warn of it.
        _private.process.returncode = 0


def _elect(node: ranks.Node, workers: int | None, limits: tuple[str, ...]) -> _Private:
    """The private sidecar that this run's local ranks share; the first to come starts it."""
    folder = runtime_folder()
    path = str(folder / f"run-{node.run_name}.sock")
    with _locked(folder / f"run-{node.run_name}.lock"):
        with suppress(SidecarExitError):
            return _Private(path, _native.Anchor(path), None, workers, limits)
        with suppress(FileNotFoundError):
            os.unlink(path)
        # One core a local rank for the trainers, the others for the sidecar.
        return _start(path, workers or max(1, _native.usable_cores() - node.local_world_size), limits)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the file lock `path`. The file is removed in the end, so whoever gets the lock looks whether it is still it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock_by(descriptor, path, deadline)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    try:
                        yield
                    finally:
                        os.unlink(path)
                    return
        finally:
            os.close(descriptor)


def _lock_by(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StallError(
                    f"another local rank has held {path} for over {START_TIMEOUT_S:.0f} s while it starts the sidecar: "
                    "look at its messages"
                ) from None
            time.sleep(0.02)


def _start(path: str, workers: int | None, limits: tuple[str, ...]) -> _Private:
    """Starts a private sidecar that listens on `path`, and waits until it does."""
    command = [*_command(), "serve", "--private", "--socket", path]
    if workers is not None:
        command += ["--workers", str(workers)]
    command += limits
    # The package is found again where it was found here, whatever made it importable; nothing else is changed.
    package_folder = str(Path(__file__).parent.parent)
    python_path = os.pathsep.join(filter(None, (package_folder, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    try:
        _wait_ready(process, command)
        anchor = _native.Anchor(path)
    except BaseException:
        process.kill()
        process.wait()
        raise
    logger.debug("started a private sidecar, process %d, at %s", process.pid, path)
    return _Private(path, anchor, process, workers, limits)


def _command() -> list[str]:
    if sys.executable:
        return [sys.executable, "-P", "-m", "feedline"]
    script = shutil.which("feedline")
    if script is None:
        raise LoaderError(
            "cannot start a private sidecar: this process does not know its Python (sys.executable is empty) and no "
            "`feedline` is on PATH; run `feedline serve --socket PATH` and pass sidecar=PATH"
        )
    return [script]


def _wait_ready(process: subprocess.Popen[bytes], command: list[str]) -> None:
    """Reads the one line that a private sidecar prints when it listens."""
    assert process.stdout is not None, "the pipe was asked for"
    deadline = time.monotonic() + START_TIMEOUT_S
    line = b""
    with process.stdout as stdout:
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining < 0:
                raise StallError(f"a private sidecar did not start within {START_TIMEOUT_S:.0f} s: {command}")
            if not select.select([stdout], [], [], min(remaining, 0.1))[0]:
                continue
            chunk = os.read(stdout.fileno(), 4096)
            if not chunk:
                raise LoaderError(
                    f"a private sidecar ended with status {process.wait()} before it was ready; its reasons are on "
                    f"standard error: {command}"
                )
            line += chunk
    try:
        json.loads(line)
    except ValueError:
        raise LoaderError(f"a private sidecar said {line!r} where its ready line was expected: {command}") from None


def _new_path() -> str:
    folder = runtime_folder()
    _sweep(folder)
    return str(folder / f"private-{os.getpid()}-{secrets.token_hex(4)}.sock")


def runtime_folder() -> Path:
    """The folder for this user's sockets, mode 0700: ``$XDG_RUNTIME_DIR/feedline``, else ``/tmp/feedline-UID``."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(base, "feedline")
    longest = len(os.fsencode(folder)) + len("/private-4194304-00000000.sock")
    if not os.path.isabs(base) or not os.access(base, os.W_OK | os.X_OK) or longest > _SOCKET_PATH_BYTES_MAX:
        folder = Path(f"/tmp/feedline-{os.geteuid()}")
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder of user {os.geteuid()} that nobody else may enter, but it has mode "
            f"{stat.filemode(found.st_mode)} and belongs to user {found.st_uid}: remove it, or set XDG_RUNTIME_DIR"
        )
    return folder


def _sweep(folder: Path) -> None:
    """Removes the sockets of sidecars that were killed."""
    for path in folder.glob("*.sock"):
        with suppress(OSError), sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
            if time.time() - path.stat().st_mtime < _STALE_AFTER_S:
                continue
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
