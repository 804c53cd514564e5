"""LMDB databases that change while they are read, or between runs; and what readers hold of them."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pytest
from databases import VALUES, digits, epoch, lmdb, logs, photos, told, write  # noqa: F401, fixtures among them

import feedline

# Snapshots.

WRITER = """
import lmdb, sys
with lmdb.open(sys.argv[1], map_size=1 << 28, lock=sys.argv[2] == "lock") as environment:
    print("open", flush=True)
    for line in sys.stdin:
        number = int(line)
        with environment.begin(write=True) as transaction:
            for key in range(40):
                transaction.put(b"%03d" % key, b"%d" % (1000 * number + key) * 300)
        print(number, flush=True)
"""


class Writer:
    """A process that writes every value of a database anew when it is told a number."""

    def __init__(self, path: Path, lock: bool) -> None:
        command = [sys.executable, "-c", WRITER, str(path), "lock" if lock else "none"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "open"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def commit(self, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        assert self._line() == str(number)

    def close(self) -> None:
        self.process.communicate()




def test_a_locked_snapshot_stays_exact(load, tmp_path, caplog) -> None:
    path = write(tmp_path / "d", [(key, value.lstrip()) for key, value in digits(40, 0)])
    loader = load(str(path), fields=VALUES, shuffle=False, batch_size=2, slots=4)
    batches = iter(loader)
    seen = next(batches)["value"].tolist()
    writer = Writer(path, lock=True)
    for number in range(1, 9):
        writer.commit(number)
    seen += [label for batch in batches for label in batch["value"].tolist()]
    writer.close()
    assert seen == list(range(40))
    assert "without a lock" not in told(caplog)


@pytest.mark.parametrize(
    ("has_lock", "reason"),
    [(True, "its lock file may not be written"), (False, "there is none, and the database is another user's")],
)
def test_a_change_without_a_lock_ends_the_stream(load, tmp_path, has_lock: bool, reason: str) -> None:
    path = write(tmp_path / "d", [(key, value.lstrip()) for key, value in digits(4_000, 0)])
    if not has_lock:
        (path / "lock.mdb").unlink()
    path.chmod(0o555)
    (path / "data.mdb").chmod(0o444)
    with tempfile.TemporaryDirectory() as place, _foreign_sidecar(path, Path(place)) as socket:
        loader = load(str(path), fields=VALUES, shuffle=False, batch_size=2, slots=4, sidecar=socket)
        batches = iter(loader)
        assert next(batches)["value"].tolist() == [0, 1]
        assert any("read without a lock, because" in notice and reason in notice for notice in _notices(loader))
        writer = Writer(path, lock=False)
        writer.commit(1)
        words = r"changed while it was read: transaction \d+ was opened, now there is \d+"
        with pytest.raises(feedline.LoaderError, match=words):
            for _ in batches:
                pass
        writer.close()


def _notices(loader: feedline.Loader) -> list[str]:
    return loader._known()["notices"]


def _without_rights(folder: Path) -> list[str]:
    """Starts a program that may write only what it owns; `folder` becomes another user's."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root, who gives files away, and setpriv")
    for path in (folder, *folder.iterdir()):
        os.chown(path, 65534, 65534)
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search,-fowner,-chown", "--inh-caps=-all", "--"]


@contextmanager
def _foreign_sidecar(folder: Path, place: Path) -> Iterator[str]:
    """A sidecar that may not write the database in `folder`."""
    socket = str(place / "s")
    command = [*_without_rights(folder), sys.executable, "-m", "feedline", "serve", "--json", "--socket", socket, "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "FEEDLINE_CACHE": str(place / "cache")})
    assert process.stdout is not None
    assert process.stdout.readline(), "the sidecar starts"
    try:
        yield socket
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("fits", [True, False])
def test_a_small_address_space(tmp_path, fits: bool) -> None:
    path = write(tmp_path / "d", [(b"%d" % n, b"%d" % n + b" " * 1_000_000) for n in range(100)])
    if not fits:
        # A file of 3 GiB, most of it a hole.
        pages = 3 << 18
        with (path / "data.mdb").open("r+b") as file:
            file.truncate(pages * 4096)
            for meta in (0, 4096):
                file.seek(meta + 136)
                file.write(struct.pack("<Q", pages - 1))
    code = f"""
import feedline, logging
logging.basicConfig(level=logging.INFO)
loader = feedline.Loader({str(path)!r}, batch_size=4, fields={{"value": feedline.Int("value")}}, shuffle=False)
print(len(loader.dataset))
print(sum(batch['value'].sum() for batch in loader))
"""
    limit = 2_000_000 << 10

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    environment = {**os.environ, "FEEDLINE_TENSORS": "numpy", "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=limited, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100", "4950"]
    assert ("read without a lock, because this process may not map as much memory" in done.stderr) != fits


def test_a_huge_map(epoch, tmp_path) -> None:
    path = write(tmp_path / "d", [(b"1", photos(1)[0])], map_size=10**12)
    assert [key for key, _, _ in epoch(path)] == ["1"]


def test_killed_readers_are_cleared(epoch, tmp_path, caplog) -> None:
    path = write(tmp_path / "d", [(b"1", photos(1)[0])])
    reader = "import lmdb, os, sys\nt = lmdb.open(sys.argv[1]).begin()\nos.kill(os.getpid(), 9)"
    held = lmdb.open(str(path))
    with held.begin():
        killed = [subprocess.Popen([sys.executable, "-c", reader, str(path)]) for _ in range(130)]
        assert [one.wait() for one in killed].count(-signal.SIGKILL) > 100
        assert [key for key, _, _ in epoch(path)] == ["1"]
    assert "without a lock" not in told(caplog)
    held.close()


def test_values_are_not_touched_by_the_index(load, tmp_path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    path = write(tmp_path / "d", [(b"%06d" % n, b"%d" % n + b" " * 100_000) for n in range(500)])
    trace = tmp_path / "trace"
    code = f"""
import feedline
print(len(feedline.Loader({str(path)!r}, fields={{"value": feedline.Int("value")}})))
"""
    command = [strace, "-f", "-y", "-e", "trace=pread64,preadv,read", "-o", str(trace), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "FEEDLINE_TENSORS": "numpy"}, timeout=200)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    read = sum(
        int(line.rsplit("=", 1)[1]) for line in trace.read_text().splitlines()
        if "data.mdb>" in line and line.rsplit("=", 1)[1].strip().isdigit()
    )  # fmt: skip
    assert 0 < read < (path / "data.mdb").stat().st_size / 100


# Going on after an interruption.


def interrupted(loader: feedline.Loader, batches: int) -> dict[str, Any]:
    """The state after some batches, as a checkpoint keeps it."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    del iterator
    loader.close()
    return state


def values_of(loader: feedline.Loader) -> list[int]:
    return [value for batch in loader for value in batch["value"].tolist()]


def test_a_resume_knows_its_snapshot(load, tmp_path, caplog) -> None:
    path = write(tmp_path / "d", digits(40, 0))
    options = {"fields": VALUES, "shuffle": True, "batch_size": 4}
    whole = values_of(load(str(path), **options))
    state = interrupted(load(str(path), **options), 3)
    (database,) = state["databases"]
    with lmdb.open(str(path)) as environment:
        assert database["transaction"] == environment.info()["last_txnid"]
    assert state["positions"] == 40

    def resumed(place: Path = path) -> list[int]:
        caplog.clear()
        loader = load(str(place), **options)
        loader.load_state_dict(state)
        # What is not known yet is kept.
        assert loader.state_dict() == state
        return values_of(loader)

    assert resumed() == whole[12:]
    assert "transaction" not in told(caplog)
    # Values alone: the order goes on, and the change is named.
    write(path, digits(40, 1000))
    assert resumed() == [value + 1000 for value in whole[12:]]
    words = f"{path}/data.mdb: this state was taken of transaction {database['transaction']}, now there is"
    assert words in told(caplog) and "values may have changed" in told(caplog)
    # A copy has its keys, in other pages.
    (tmp_path / "copy").mkdir()
    with lmdb.open(str(path)) as environment:
        environment.copy(str(tmp_path / "copy"), compact=True)
    assert resumed(tmp_path / "copy") == [value + 1000 for value in whole[12:]]
    # Another key, or one less: the same position is another sample.
    write(path, [(b"0005", b"7")])
    with pytest.raises(ValueError, match="with other keys or in another order, so the same position is another sample"):
        resumed()
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"0005")
    assert resumed() == [value + 1000 for value in whole[12:]]


def test_a_resume_counts_positions(load, tmp_path) -> None:
    shard = tmp_path / "s.tar"
    datasets.write_shard(shard, [(f"{number}.value", b"%d" % number) for number in range(20)])
    state = interrupted(load(shard, fields=VALUES, batch_size=4), 2)
    datasets.write_shard(shard, [(f"{number}.value", b"%d" % number) for number in range(21)])
    loader = load(shard, fields=VALUES, batch_size=4)
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(ValueError, match="an epoch of 20 positions, the loader has 21"):
            iter(loader)
    old = {name: state[name] for name in ("version", "epoch", "position", "seed", "order", "mix", "quarantine")}
    loader.load_state_dict(old)
    assert len(values_of(loader)) == 13, "a state that does not say is taken at its word"


@pytest.mark.parametrize("other", [{"indices": [1, 0, *range(2, 20)]}, {"weights": [1.0] * 20}, {}], ids=["subset", "weights", "none"])
def test_a_resume_knows_its_selection(load, tmp_path, other: dict[str, Any]) -> None:
    shard = tmp_path / "s.tar"
    datasets.write_shard(shard, [(f"{number}.value", b"%d" % number) for number in range(20)])
    selection = {"indices": list(range(20))}
    state = interrupted(load(shard, fields=VALUES, batch_size=4, **selection), 2)
    loader = load(shard, fields=VALUES, batch_size=4, **other)
    with pytest.raises(ValueError, match="indices, weights or a Join of hash .* make the loader with the same ones"):
        loader.load_state_dict(state)
    same = load(shard, fields=VALUES, batch_size=4, **selection)
    same.load_state_dict(state)
    assert len(values_of(same)) == 12


def test_a_resume_knows_its_join(load, tmp_path) -> None:
    for name in ("left", "right"):
        datasets.write_shard(tmp_path / f"{name}.tar", [(f"{number}.value", b"%d" % number) for number in range(20)])
    parts = {name: str(tmp_path / f"{name}.tar") for name in ("left", "right")}
    fields = {"value": feedline.Int("left.value"), "other": feedline.Int("right.value")}
    state = interrupted(load(feedline.Join(parts), fields=fields, batch_size=4), 2)
    reversed_parts = dict(reversed(parts.items()))
    for dataset, taken in ((feedline.Join(reversed_parts), fields), (parts["left"], VALUES)):
        with pytest.raises(ValueError, match="the same position is another sample"):
            load(dataset, fields=taken, batch_size=4).load_state_dict(state)
    same = load(feedline.Join(parts), fields=fields, batch_size=4)
    same.load_state_dict(state)
    assert len(values_of(same)) == 12


# The trainer's side.


def test_the_trainer_holds_nothing_of_a_database(load, tmp_path) -> None:
    path = write(tmp_path / "d", digits(40, 0))
    loader = load(str(path), fields=VALUES, shuffle=False, batch_size=4)
    iterator = iter(loader)
    next(iterator)
    open_files = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
    maps = Path("/proc/self/maps").read_text()
    assert str(path) not in maps and not any(str(path) in target for target in open_files)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_open_their_own_stream(script, tmp_path, method: str) -> None:
    path = write(tmp_path / "d", digits(40, 0))
    # A spawned child imports the parent's main module, which must be a file.
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing, feedline

def child(loader, answer):
    answer.put([int(value) for batch in loader for value in batch["value"]])

if __name__ == "__main__":
    loader = feedline.Loader({str(path)!r}, fields={{"value": feedline.Int("value")}}, batch_size=4, shuffle=False, timeout=60)
    first = next(iter(loader))
    context = multiprocessing.get_context({method!r})
    answer = context.Queue()
    process = context.Process(target=child, args=(loader, answer))
    process.start()
    found = answer.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0 and found == list(range(40)), (process.exitcode, found)
    assert [int(value) for batch in loader for value in batch["value"]] == list(range(40))
""")
    script("import runpy; runpy.run_path(sys.argv[1], run_name='__main__')" if method == "fork" else
           "import subprocess; subprocess.run([sys.executable, sys.argv[1]], check=True)", str(program)).finish()  # fmt: skip


def test_a_value_is_read_by_one_request(load, tmp_path) -> None:
    """Over all its overflow pages, and without a touch of any other."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    path = write(tmp_path / "d", [(b"%03d" % n, b"%d" % n + b" " * 150_000) for n in range(60)])
    len(load(str(path), fields=VALUES))
    trace, place = tmp_path / "trace", tempfile.mkdtemp(prefix="feedline-")
    socket = f"{place}/s"
    serve = [sys.executable, "-m", "feedline", "serve", "--json", "--socket", socket, "--workers", "1", "--reader", "pread"]
    command = [strace, "-f", "-y", "-e", "trace=pread64,preadv,preadv2", "-o", str(trace), *serve]
    # strace goes with what it traces.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        if not process.stdout.readline():
            pytest.skip(f"strace may not trace here: {process.stderr.read()!r}")
        assert sorted(values_of(load(str(path), fields=VALUES, batch_size=4, sidecar=socket))) == list(range(60))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        shutil.rmtree(place)
    # What another thread interrupted is told in two lines.
    lengths, unfinished = [], set()
    for line in trace.read_text().splitlines():
        thread = line.split()[0]
        if "data.mdb>" in line and "<unfinished" in line:
            unfinished.add(thread)
        elif "data.mdb>" in line or ("resumed>" in line and thread in unfinished):
            unfinished.discard(thread)
            length = line.rsplit("=", 1)[1].strip()
            lengths += [int(length)] if length.isdigit() else []
    values = [length for length in lengths if length > 100_000]
    # The next epoch's first batches are read ahead.
    assert len(values) >= 60 and all(150_000 <= length < 150_000 + 3 * 4096 for length in values), sorted(set(values))
    assert sum(lengths) - sum(values) < 100 * 4096, "little else is read"
