"""Batches on a GPU that is pretended: right bytes, starved time by the device's clock, NVTX ranges, and how a GPU is named."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

import feedline
from feedline.starved import CAUSES, Request, Starvation, words

pytest.importorskip("torch")

HERE = Path(__file__).parent

PRELUDE = f"""
sys.path.insert(0, {str(HERE)!r})
import pretend_gpu, torch
from pretend_gpu import clock, streams
pretend_gpu.install()
IMAGE = {{"image": feedline.Image(["jpg"], feedline.Resize((64, 64)))}}
"""


def build(folder: Path, source: str, name: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed, which builds the stand-ins")
    library = folder / name
    subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(HERE / source)], check=True)
    return library


@pytest.fixture
def pretend(tmp_path: Path, script: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a script on a pretended GPU; what it said."""
    (tmp_path / "libcuda.so").symlink_to(build(tmp_path, "cuda_stub.c", "libcuda.so.1"))
    log = tmp_path / "log"

    def run(code: str, *argv: str, **settings: str) -> Any:
        env = {"STUB_LOG": str(log), "LD_LIBRARY_PATH": str(tmp_path), "FEEDLINE_TENSORS": "torch", **settings}
        return script(PRELUDE + code, *argv, env=env).finish()

    return run


def test_the_same_bytes(pretend: Callable[..., Any], dataset: datasets.Dataset) -> None:
    code = """
count = 0
for (there, labels), (here, own) in zip(load(sys.argv[1], device="cuda"), load(sys.argv[1]), strict=True):
    assert torch.equal(there, here) and torch.equal(labels, own) and there.stride() == here.stride()
    count += len(here)
say("rows", count)
"""
    assert pretend(code, dataset.pattern)[0] == [["rows", 100]]


#: A step after each batch of an epoch; says what was starved, and what was pending.
STEPS = """
loader = load(sys.argv[1], fields=IMAGE, batch_size=10, slots=4, device="cuda", device_prefetch=1)
iterator = iter(loader)
for _ in range(10):
    next(iterator)
    STEP
said = iterator._connection.summary()
say(said["gpu_starved_s"], said["gpu_starved_by_cause"], said["gpu_starved_pending"])
"""


def test_a_device_with_work_does_not_starve(pretend: Callable[..., Any], dataset: datasets.Dataset) -> None:
    # The host is a step ahead: the device has 100 s of work when a batch is asked for, and a copy takes 0.25 s.
    code = "streams[7].work(100)\n" + STEPS.replace("STEP", "clock.now += 50; streams[7].work(100)") + """
clock.now += 10_000
said = iterator._connection.summary()
say(said["gpu_starved_s"], said["gpu_starved_pending"])
"""
    said, _ = pretend(code, dataset.pattern)
    assert said[0][0] == 0
    assert said[1] == [0, 0]


def test_a_device_that_waits_for_the_host_starves(pretend: Callable[..., Any], dataset: datasets.Dataset) -> None:
    # Nothing to do at any request, and batches ask for one copy each, or find one under way.
    said, _ = pretend(STEPS.replace("STEP", "clock.now += 50"), dataset.pattern)
    (total, by_cause, pending), = said
    assert list(by_cause) == list(CAUSES)
    assert total == pytest.approx(sum(by_cause.values())) and total > 0
    assert by_cause["copy"] == pytest.approx(total), "the clock stands still while the host waits"
    assert pending <= 1


def event(at: float, is_over: bool = True) -> Any:
    return SimpleNamespace(at=at, query=lambda: is_over, elapsed_time=lambda other: 1000 * (other.at - at))


@pytest.mark.parametrize(
    ("needed", "began", "done", "was_ready", "waiting", "expected"),
    [
        # The device had work until the copy was there.
        (9.0, 4.0, 5.0, False, {"decode": 1.0}, {}),
        # It had none for 3 s, the last of them for the copy.
        (2.0, 4.0, 5.0, False, {"decode": 1.0}, {"decode": 2.0, "copy": 1.0}),
        (2.0, 4.0, 5.0, False, {"decode": 1.0, "storage": 3.0, "slots": 0.0}, {"storage": 1.5, "decode": 0.5, "copy": 1.0}),
        # The work ended during the copy.
        (4.5, 4.0, 5.0, False, {"decode": 1.0}, {"copy": 0.5}),
        # The batch was in the ring.
        (2.0, 4.0, 5.0, True, {"decode": 1.0}, {"copy": 3.0}),
        # Too short for the sampler.
        (3.0, 4.0, 5.0, False, {"decode": 0.0}, {"unsampled": 1.0, "copy": 1.0}),
    ],
)
def test_starved_time_and_causes(
    needed: float, began: float, done: float, was_ready: bool, waiting: dict[str, float], expected: dict[str, float]
) -> None:
    starvation = Starvation()
    starvation.note(Request(event(needed), event(began), event(done), was_ready))
    found = starvation.report(waiting)
    assert found["gpu_starved_by_cause"] == pytest.approx(dict.fromkeys(CAUSES, 0.0) | expected)
    assert found["gpu_starved_s"] == pytest.approx(sum(expected.values()))
    assert starvation.report(waiting)["gpu_starved_s"] == 0


def test_what_is_not_over_is_reported_later() -> None:
    starvation, late = Starvation(), event(1.0, is_over=False)
    starvation.note(Request(late, event(2.0), event(3.0), True))
    starvation.note(Request(event(4.0), event(5.0), event(6.0), True))
    starvation.restart()
    assert starvation.report({}) == {
        "gpu_starved_s": 0.0, "gpu_starved_by_cause": dict.fromkeys(CAUSES, 0.0), "gpu_starved_pending": 2
    }  # fmt: skip
    late.query = lambda: True
    found = starvation.report({})
    assert (found["gpu_starved_s"], found["gpu_starved_pending"]) == (4.0, 0)
    assert words(found | {"gpu_starved_by_cause": {"decode": 1.0, "copy": 0.0}}) == "GPU starved 4.0 s (decode 1.0)"


def test_an_epoch_says_so(pretend: Callable[..., Any], dataset: datasets.Dataset) -> None:
    code = """
import logging
class Said(logging.Handler):
    def emit(self, record): say(record.getMessage())
logging.getLogger("feedline").addHandler(Said()); logging.getLogger("feedline").setLevel(logging.INFO)
for options in ({"device": "cuda"}, {}):
    for _ in load(sys.argv[1], **options): pass
"""
    lines = [line for line, in pretend(code, dataset.pattern)[0] if line.startswith("epoch 0")]
    assert ["GPU starved" in line for line in lines] == [True, False]
    assert all("waited" in line for line in lines)


# NVTX.

RANGES = """
options = dict(fields=IMAGE, batch_size=25, **json.loads(sys.argv[2]))
say("batches", sum(1 for _ in load(sys.argv[1], **options)))
"""


@pytest.mark.parametrize(
    ("options", "env", "names"),
    [
        ('{"nvtx": true, "device": "cuda"}', {}, {"wait", "copy", "hand-over"}),
        ('{"nvtx": true}', {}, {"wait", "hand-over"}),
        ('{"device": "cuda"}', {"FEEDLINE_NVTX": "1"}, {"wait", "copy", "hand-over"}),
        ('{"nvtx": false}', {"FEEDLINE_NVTX": "1"}, set()),
        ('{"device": "cuda"}', {}, set()),
    ],
)
def test_ranges(
    pretend: Callable[..., Any], dataset: datasets.Dataset, tmp_path: Path, options: str, env: dict[str, str], names: set[str]
) -> None:
    log = tmp_path / "ranges"
    log.touch()
    listener = build(tmp_path, "nvtx_listener.c", "listener.so")
    settings = {"NVTX_INJECTION64_PATH": str(listener), "NVTX_LOG": str(log), **env}
    assert ["batches", 4] in pretend(RANGES, dataset.pattern, options, **settings)[0]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert {line[1] for line in lines if line[0] == "push"} == {f"feedline.{name}" for name in names}
    depth = 0
    for line in lines:
        depth += 1 if line[0] == "push" else -1
        assert 0 <= depth <= 1
    assert depth == 0
    for name in names - {"wait"}:
        assert sum(line[1:] == [f"feedline.{name}"] for line in lines) == 4


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "no profiler listens"),
        ({"NVTX_INJECTION64_PATH": "/no/such/file.so"}, "names no library of a profiler"),
        ({"NVTX_INJECTION64_PATH": "libm.so.6"}, "names no library of a profiler"),
        ({"NVTX_INJECTION64_PATH": "", "NVTX_REFUSE": "1"}, "refused to start"),
    ],
)
def test_without_a_profiler(
    pretend: Callable[..., Any], dataset: datasets.Dataset, tmp_path: Path, settings: dict[str, str], expected: str
) -> None:
    if "NVTX_REFUSE" in settings:
        settings = {**settings, "NVTX_INJECTION64_PATH": str(build(tmp_path, "nvtx_listener.c", "listener.so"))}
    code = "import logging; logging.basicConfig(level=logging.INFO)" + RANGES
    said, err = pretend(code, dataset.pattern, '{"nvtx": true}', **settings)
    assert ["batches", 4] in said
    assert expected in err


def test_a_setting_that_cannot_be(monkeypatch: pytest.MonkeyPatch, dataset: datasets.Dataset) -> None:
    monkeypatch.setenv("FEEDLINE_NVTX", "yes")
    with pytest.raises(ValueError, match="FEEDLINE_NVTX must be 0 or 1, got 'yes'"):
        feedline.Loader(dataset.pattern)


# Naming a GPU.


@pytest.mark.parametrize("name", ["GPU-0c6e04a2-5a1f", "MIG-GPU-0c6e04a2-5a1f/1/0", "MIG-9d5a"])
def test_a_uuid_is_for_the_variable(dataset: datasets.Dataset, name: str) -> None:
    with pytest.raises(ValueError, match=f"CUDA_VISIBLE_DEVICES={name}.*device=\"cuda\""):
        feedline.Loader(dataset.pattern, device=name)


@pytest.mark.parametrize("visible", ["1", "0,1", "GPU-0c6e04a2-5a1f", "MIG-9d5a"])
def test_what_is_visible_is_the_drivers_affair(pretend: Callable[..., Any], dataset: datasets.Dataset, tmp_path: Path, visible: str) -> None:
    code = 'say(sum(len(images) for images, in load(sys.argv[1], fields=IMAGE, device="cuda")))'
    assert pretend(code, dataset.pattern, CUDA_VISIBLE_DEVICES=visible)[0] == [[100]]
    assert "register" in (tmp_path / "log").read_text()
