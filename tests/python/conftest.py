"""Fixtures: datasets, sidecars, scripts in processes of their own."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

import feedline

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def runtime_folder() -> Iterator[Path]:
    """Private sidecars of these tests keep to themselves; the folder is short, as socket paths must be."""
    folder = Path(tempfile.mkdtemp(prefix="feedline-tests-"))
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    for name in ("FEEDLINE_SOCKET", "FEEDLINE_TENSORS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> datasets.Dataset:
    """100 samples in 4 shards."""
    return datasets.write(tmp_path_factory.mktemp("dataset"), 100)


FIELDS = {
    "image": feedline.Image(["jpg"], feedline.RandomResizedCrop(32), feedline.RandomHorizontalFlip()),
    "label": feedline.Int("cls"),
}


@pytest.fixture
def load(dataset: datasets.Dataset) -> Iterator[Callable[..., feedline.Loader]]:
    """Makes loaders over `dataset` (or the first argument), closed at the end of the test."""
    made = []

    def make(shards: Any = None, **options: Any) -> feedline.Loader:
        options = {"batch_size": 8, "shuffle": True, "seed": 5, "fields": FIELDS, "timeout": 60, **options}
        made.append(feedline.Loader(dataset.pattern if shards is None else shards, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


class Sidecar:
    """A running `feedline serve`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = str(folder / "sidecar.sock")
        command = [sys.executable, "-m", "feedline", "serve", "--json", "--socket", self.socket, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal and waits for the end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        self.process.wait(timeout=10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Sidecar]]:
    """Starts sidecars with options; they are killed at the end of the test."""
    with tempfile.TemporaryDirectory(prefix="feedline-") as folder:
        started: list[Sidecar] = []

        def start(*options: str) -> Sidecar:
            place = Path(folder, str(len(started)))
            place.mkdir()
            started.append(Sidecar(place, *options))
            return started[-1]

        yield start
        for sidecar in started:
            sidecar.kill()


class Script:
    """Python code in a process of its own; `say` in it sends a line here. It gets NumPy batches, as torch starts slowly."""

    PRELUDE = """
import json, os, signal, sys, time
import feedline
signal.signal(signal.SIGINT, signal.default_int_handler)  # Which a shell's background jobs ignore.
def say(*words): print(json.dumps(words), flush=True)
FIELDS = {"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(32), feedline.RandomHorizontalFlip()),
          "label": feedline.Int("cls")}
def load(shards, **options):
    return feedline.Loader(shards, **{"batch_size": 8, "shuffle": True, "seed": 5, "fields": FIELDS, "timeout": 60, **options})
"""

    def __init__(self, code: str, *argv: str, is_bare: bool = False, env: dict[str, str] | None = None, stdin: bool = False) -> None:
        command = [sys.executable, "-c", self.PRELUDE + code, *argv]
        base = {} if is_bare else {**os.environ, "FEEDLINE_TENSORS": "numpy"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if stdin else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**base, **(env or {})},
            cwd="/",
        )

    def hear(self) -> list[Any]:
        """The next line that the script says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the script ended: {self.finish(check=False)[1]}")
        return json.loads(line)

    def finish(self, check: bool = True) -> tuple[list[list[Any]], str]:
        """The rest of what the script says, and its standard error."""
        out, err = self.process.communicate(timeout=60)
        if check and self.process.returncode != 0:
            pytest.fail(f"the script ended with {self.process.returncode}: {err.decode()}")
        return [json.loads(line) for line in out.splitlines()], err.decode()


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    """Starts scripts; they are killed at the end of the test."""
    started: list[Script] = []

    def start(code: str, *argv: str, **options: Any) -> Script:
        started.append(Script(code, *argv, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def wait_gone(pid: int, seconds: float) -> bool:
    """Whether process `pid` ends within `seconds`."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether `condition` comes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
