"""Named rings: a C program that knows nothing but the name, and what becomes of the names."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import HERE, within

import feedline

FOLDER = Path("/dev/shm")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.Popen[str]]:
    """Starts the reader in C."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    program = tmp_path_factory.mktemp("named") / "named_reader"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", HERE / "named_reader.c", "-o", program], check=True)

    def start(name: str, *words: object) -> subprocess.Popen[str]:
        command = [str(program), name, *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def parts(name: str) -> list[Path]:
    return [FOLDER / (name[1:] + part) for part in (".control", ".slots")]


def gone(name: str) -> bool:
    return not any(path.exists() for path in parts(name))


def said(batches: list[feedline.Batch], first: tuple[int, int] = (0, 0)) -> list[list[int]]:
    """What the reader prints of `batches`."""
    epoch, number = first
    return [
        [epoch, number + index, len(batch["label"]), int(batch["label"].sum()), zlib.adler32(batch["image"].tobytes())]
        for index, batch in enumerate(batches)
    ]


def heard(process: subprocess.Popen[str]) -> list[list[int]]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [[int(word) for word in line.split()] for line in out.splitlines()]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How a reader ended, and its last words."""
    _, err = process.communicate(timeout=60)
    return process.returncode, err.strip()


@pytest.fixture(autouse=True)
def numpy_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_TENSORS", "numpy")


def test_a_c_program_takes_two_epochs_by_name(load, reader) -> None:
    expected = load()
    batches = [batch for epoch in range(2) for batch in said(list(expected), (epoch, 0))]
    with load(ring="named", name="My job", slots=4).serve_ring() as ring:
        assert ring.name.startswith("/feedline.my-job.0.")
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in parts(ring.name))
        assert len(batches) == 2 * ring.info["batches_per_epoch"] > 4 * 4, "slots go round"
        assert heard(reader(ring.name, len(batches))) == batches
        ring.check()
    assert within(10, lambda: gone(ring.name))


def test_another_reader_goes_on_where_the_first_stopped(load, reader) -> None:
    batches = said(list(load()))
    with load(ring="named").serve_ring() as ring:
        assert heard(reader(ring.name, 5)) == batches[:5]
        assert ended(reader(ring.name, 1)) == (1, "another process takes its batches")
        # The first has ended: its number may be taken out.
        with parts(ring.name)[0].open("r+b") as control:
            control.seek(136)
            control.write(bytes(4))
        assert heard(reader(ring.name, 3)) == batches[5:8]


def test_a_resumed_ring_starts_at_its_position(load, reader) -> None:
    loader = load(ring="named")
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "position": 40})
    other = load()
    other.load_state_dict({**other.state_dict(), "epoch": 3, "position": 40})
    with loader.serve_ring() as ring:
        assert heard(reader(ring.name, 4)) == said(list(other)[:4], (3, 0))


def test_python_takes_a_named_ring_too(load) -> None:
    def taken(loader: feedline.Loader) -> list[list[int]]:
        return said([*loader])

    loader = load(ring="named")
    assert taken(loader) == taken(load())
    name = loader._idle.info["ring_name"]
    assert not gone(name)
    loader.close()
    assert within(10, lambda: gone(name))


def test_a_reader_that_cuts_the_ring_ends_its_stream_alone(load, serve, reader) -> None:
    server = serve("--workers", "1")
    honest = load(sidecar=server.socket)
    batches = iter(honest)
    next(batches)
    with load(sidecar=server.socket, ring="named").serve_ring() as ring:
        assert ended(reader(ring.name, 2, "cut")) == (0, "")

        def has_ended() -> bool:
            try:
                ring.check()
            except feedline.LoaderError as error:
                assert "pages of the ring's memory were lost" in str(error)
                return True
            return False

        assert within(10, has_ended)
    assert len(list(batches)) == len(honest) - 1
    assert server.process.poll() is None
    assert within(10, lambda: gone(ring.name))


SERVE = """
ring = load(sys.argv[1], ring="named").serve_ring()
say(ring.name, ring.info["sidecar_pid"])
signal.pause()
"""


def test_a_killed_owner_leaves_nothing_and_its_reader_ends(script, serve, dataset, reader) -> None:
    server = serve()
    owner = script(SERVE, dataset.pattern, env={"FEEDLINE_SOCKET": server.socket})
    name, _ = owner.hear()
    taking = reader(name, 1_000_000)
    assert taking.stdout is not None and taking.stdout.readline()
    owner.process.kill()
    assert within(10, lambda: gone(name))
    assert ended(taking) == (1, "the stream has ended")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_dead_sidecar_leaves_is_swept(load, serve, reader, number) -> None:
    server = serve()
    loader = load(sidecar=server.socket, ring="named")
    ring = loader.serve_ring()
    taking = reader(ring.name, 1_000_000)
    assert taking.stdout is not None and taking.stdout.readline()
    server.kill(number)
    assert ended(taking) == (1, "the stream has ended")
    with pytest.raises(feedline.SidecarExitError):
        ring.check()
    ring.close()
    assert gone(ring.name) == (number == signal.SIGTERM)
    serve()
    assert gone(ring.name), "swept by the next"


def test_a_private_sidecar_ends_with_its_owner_and_leaves_nothing(script, dataset) -> None:
    owner = script(SERVE, dataset.pattern)
    name, pid = owner.hear()
    assert not gone(name)
    owner.process.kill()
    assert within(20, lambda: not Path(f"/proc/{pid}").exists())
    assert gone(name)


def test_what_cannot_be_is_refused_in_words(load, serve) -> None:
    with pytest.raises(ValueError, match="ring must be 'memfd' or 'named'"):
        load(ring="file")
    with pytest.raises(ValueError, match="make the loader with ring=\"named\""):
        load().serve_ring()
    fields = {"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(32)), "words": feedline.Text(["cls"])}
    with pytest.raises(ValueError, match="field 'words' has rows of any size"):
        load(ring="named", fields=fields).serve_ring()
    server = serve("--allow-uid", "12345")
    with pytest.raises(ValueError, match="not for a service that admits other users"):
        load(ring="named", sidecar=server.socket).serve_ring()
    ring = load(ring="named").serve_ring()
    ring.close()
    with pytest.raises(feedline.LoaderError, match="this ring is closed"):
        ring.check()


IN_SMALL_FOLDER = """
import subprocess
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm"], check=True)
try:
    load(sys.argv[1], ring="named", batch_size=64).serve_ring()
except feedline.ResourceError as error:
    say(str(error))
say(os.listdir("/dev/shm"))
"""


def test_a_small_folder_is_refused_with_need_and_have(script, dataset, monkeypatch) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode or os.geteuid():
        pytest.skip("needs root and unshare to mount a small /dev/shm")
    import sys

    wrapper = Path(os.environ["XDG_RUNTIME_DIR"], "unshared-python")
    wrapper.write_text(f'#!/bin/sh\nexec unshare -m {sys.executable} "$@"\n')
    wrapper.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(wrapper))
    (refused,), (left,) = script(IN_SMALL_FOLDER, dataset.pattern).finish()[0]
    assert "MiB in /dev/shm, which has 1.0 MiB free" in refused and "--shm-size" in refused
    assert left == []
