"""Importing has no side effects, and the package is what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import feedline


def run(code: str, **env: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_starts_and_opens_nothing() -> None:
    code = """
import json, os, sys, threading
def descriptors(): return sorted(os.listdir("/proc/self/fd"))
before = descriptors(), len(os.listdir("/proc/self/task"))
import feedline
after = descriptors(), len(os.listdir("/proc/self/task"))
print(json.dumps([before == after, [name for name in ("torch", "numpy") if name in sys.modules]]))
"""
    assert json.loads(run(code)) == [True, []]


def test_making_a_loader_starts_and_opens_nothing(dataset) -> None:
    code = f"""
import json, os, sys, feedline
before = len(os.listdir("/proc/self/fd"))
loader = feedline.Loader({dataset.pattern!r}, 8, fields={{"label": feedline.Int("cls")}})
print(json.dumps([len(os.listdir("/proc/self/fd")) - before, "torch" in sys.modules, os.listdir(os.environ["XDG_RUNTIME_DIR"])]))
"""
    folder = os.path.join(os.environ["XDG_RUNTIME_DIR"], "empty")
    os.mkdir(folder)
    assert json.loads(run(code, XDG_RUNTIME_DIR=folder)) == [0, False, []]


@pytest.mark.parametrize("command", [["-m", "feedline"], ["-P", "-m", "feedline"]])
def test_the_module_is_the_command(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for word in ("serve", "convert", "inspect"):
        assert word in done.stdout
    refused = subprocess.run([sys.executable, *command, "no-such-command"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "no-such-command" in refused.stderr


def test_everything_public_is_documented() -> None:
    assert sorted(feedline.__all__) == feedline.__all__
    for name in feedline.__all__:
        value = getattr(feedline, name)
        assert isinstance(value, str) or value.__doc__, name
    assert issubclass(feedline.ResourceError, MemoryError)
    for error in (feedline.StallError, feedline.SidecarExitError, feedline.SampleError, feedline.BudgetError):
        assert issubclass(error, feedline.LoaderError)
