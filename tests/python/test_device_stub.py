"""Page-locking and the return of slots, with a stand-in for the CUDA driver: what a driver may say, and in which order."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

pytest.importorskip("torch")

#: Torch as it looks once CUDA is initialised, as far as a loader with `pin_memory` looks.
INITIALISED = """
import ctypes, gc, logging, torch
from types import SimpleNamespace
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.current_device = lambda: 0
torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=7)
class Said(logging.Handler):
    def emit(self, record): say(record.levelname, record.getMessage())
logging.getLogger("feedline.device").addHandler(Said()); logging.getLogger("feedline").addHandler(Said())
logging.getLogger("feedline").setLevel(logging.INFO)
finish = lambda: ctypes.CDLL("libcuda.so.1").stub_finish()
IMAGE = {"image": feedline.Image(["jpg"], feedline.Resize((64, 64)))}
"""


class Stub:
    """The driver's stand-in: how to start a script with it, and what it wrote down."""

    def __init__(self, folder: Path, script: Callable[..., Any]) -> None:
        self._folder, self._script = folder, script
        source = Path(__file__).with_name("cuda_stub.c")
        library = folder / "libcuda.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        (folder / "libcuda.so").symlink_to(library)
        self.log = folder / "log"
        self.log.touch()

    def run(self, code: str, *argv: str, **settings: object) -> Any:
        env = {f"STUB_{name.upper()}": str(value) for name, value in settings.items()}
        env |= {"STUB_LOG": str(self.log), "LD_LIBRARY_PATH": str(self._folder), "FEEDLINE_TENSORS": "torch"}
        return self._script(INITIALISED + code, *argv, env=env)

    def calls(self) -> list[tuple[str, int, int]]:
        lines = (line.split() for line in self.log.read_text().splitlines())
        return [(call, int(pid), int(number)) for call, pid, number in lines]

    def counts(self) -> Counter[str]:
        return Counter(call for call, _, _ in self.calls())


@pytest.fixture
def stub(tmp_path: Path, script: Callable[..., Any]) -> Stub:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed, which builds the driver's stand-in")
    return Stub(tmp_path, script)


def words(said: list[list[Any]], level: str) -> str:
    return "\n".join(message for kind, message in (line for line in said if len(line) == 2) if kind == level)


def test_short_of_locked_memory(stub: Stub, dataset: datasets.Dataset) -> None:
    code = """
fields = {"image": feedline.Image(["jpg"], feedline.Resize((224, 224)))}
loader = load(sys.argv[1], fields=fields, batch_size=64, slots=8, pin_memory=True)
say("rows", sum(len(images) for images, in loader))
"""
    said, _ = stub.run(code, dataset.pattern, limit=64 << 20).finish()
    assert ["rows", 100] in said
    warning = words(said, "WARNING")
    assert "CUDA error 2, out of memory" in warning and "page-locked" in warning
    sizes = [number for call, _, number in stub.calls() if call == "register"]
    # Halved down to single slots: six of eight fit.
    slot = min(sizes)
    assert sizes == [8 * slot, 4 * slot, 4 * slot, 2 * slot, 2 * slot, slot]
    assert f"page-locked {6 * slot / (1 << 20):.1f} MiB of the ring's {8 * slot / (1 << 20):.1f} MiB" in warning


@pytest.mark.parametrize(
    ("code", "level", "expected"),
    [(801, "WARNING", "not supported"), (1, "WARNING", "invalid value"), (712, "INFO", "already page-locked")],
)
def test_refusals_have_words(stub: Stub, dataset: datasets.Dataset, code: int, level: str, expected: str) -> None:
    run = 'say("rows", sum(len(images) for images, in load(sys.argv[1], fields=IMAGE, pin_memory=True)))'
    said, _ = stub.run(run, dataset.pattern, register=code).finish()
    assert ["rows", 100] in said
    assert expected in words(said, level) and f"error {code}" in words(said, level)
    assert stub.counts()["register"] == 1
    assert stub.counts()["unregister"] == 0


def test_registered_once_whatever_the_number_of_batches(stub: Stub, dataset: datasets.Dataset) -> None:
    code = """
loader = load(sys.argv[1], batch_size=2, pin_memory=True)
say("batches", sum(1 for _ in range(20) for _ in loader))
loader.close()
"""
    said, _ = stub.run(code, dataset.pattern).finish()
    assert ["batches", 1000] in said
    assert stub.counts()["register"] == 1


def test_two_loaders_lock_a_ring_each(stub: Stub, dataset: datasets.Dataset) -> None:
    code = """
one, two = (load(sys.argv[1], fields=IMAGE, pin_memory=True) for _ in range(2))
say("rows", sum(len(first) + len(second) for (first,), (second,) in zip(one, two)))
one.close(); two.close(); gc.collect()
"""
    said, _ = stub.run(code, dataset.pattern).finish()
    assert ["rows", 200] in said
    assert stub.counts()["register"] == stub.counts()["unregister"] == 2


def test_a_dead_batch_is_parked_until_the_device_is_done(stub: Stub, dataset: datasets.Dataset) -> None:
    code = """
loader = load(sys.argv[1], fields=IMAGE, batch_size=12, slots=4, pin_memory=True)
for batch in loader:
    if sys.argv[2] == "finish": finish()
    del batch
say("copies", loader.copied_batches)
finish(); loader.close(); finish()
"""
    check = lambda what: [line[1] for line in stub.run(code, dataset.pattern, what, hold=1).finish()[0] if line[0] == "copies"]
    assert check("finish") == [0]
    # No slot comes back, so the third batch and those after it are copies.
    assert check("wait") == [9 - 2]


def test_side_streams_are_waited_for(stub: Stub, dataset: datasets.Dataset) -> None:
    code = """
loader = load(sys.argv[1], fields=IMAGE, pin_memory=True)
for number, batch in enumerate(loader):
    if number == 3: batch.release_after(SimpleNamespace(cuda_stream=99))
"""
    stub.run(code, dataset.pattern).finish()
    assert Counter(number for call, _, number in stub.calls() if call == "record")[99] == 1


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "loader.close(); del batch, images",
        "del batch; del loader; gc.collect(); del images",
        "del iterator; batch = next(iter(loader))",
        "sys.modules.clear()",
    ],
)
def test_ends_in_every_order(stub: Stub, dataset: datasets.Dataset, ending: str) -> None:
    code = f"""
loader = load(sys.argv[1], fields=IMAGE, batch_size=12, pin_memory=True)
iterator = iter(loader)
next(iterator)
batch = next(iterator)
images = batch["image"]
{ending}
"""
    stub.run(code, dataset.pattern, hold=1).finish()
    counts = stub.counts()
    assert counts["register"] in (1, 2)
    assert counts["unregister"] <= counts["register"]


def test_a_forked_child_leaves_the_driver_alone(stub: Stub, dataset: datasets.Dataset) -> None:
    code = """
loader = load(sys.argv[1], fields=IMAGE, batch_size=12, pin_memory=True)
iterator = iter(loader)
batch = next(iterator)
child = os.fork()
if not child:
    try: batch["image"]
    except feedline.ForkedError: say("refused", True)
    del batch, iterator, loader
    gc.collect()
    os._exit(0)
say("child", os.waitpid(child, 0)[1])
say("rows", 12 + sum(len(images) for images, in iterator))
"""
    process = stub.run(code, dataset.pattern)
    said, _ = process.finish()
    assert ["refused", True] in said and ["child", 0] in said and ["rows", 100] in said
    assert {pid for _, pid, _ in stub.calls()} == {process.process.pid}


def test_without_a_driver(script: Callable[..., Any], dataset: datasets.Dataset) -> None:
    import ctypes.util

    if ctypes.util.find_library("cuda"):
        pytest.skip("there is an NVIDIA driver here")
    code = INITIALISED + 'say("rows", sum(len(images) for images, in load(sys.argv[1], fields=IMAGE, pin_memory=True)))'
    said, _ = script(code, dataset.pattern, env={"FEEDLINE_TENSORS": "torch"}).finish()
    assert ["rows", 100] in said
    assert "there is no NVIDIA driver here" in words(said, "WARNING")
    code = """
try: next(iter(load(sys.argv[1], device="cuda")))
except feedline.ResourceError as error: say("refused", str(error))
"""
    said, _ = script(code, dataset.pattern, env={"FEEDLINE_TENSORS": "torch"}).finish()
    assert "needs a GPU that torch can use" in said[0][1]
