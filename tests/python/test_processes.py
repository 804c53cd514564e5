"""Several processes: ranks, forks, signals, deaths."""

from __future__ import annotations

import lzma
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import wait_gone, within

import feedline
from feedline import sidecar as sidecar_module

TAKE_ALL = """
loader = load(sys.argv[1], tail=sys.argv[2])
for epoch in range(2):
    for batch in loader:
        valid = batch.valid.tolist()
        say(epoch, batch.sample_keys, valid)
say("sidecar", loader._known()["sidecar_pid"])
"""


def rank_environment(rank: int, world_size: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), **more}


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_exactly_once_over_two_ranks(script, serve, dataset, tail) -> None:
    server = serve("--workers", "2")
    ranks = [
        script(TAKE_ALL, dataset.pattern, tail, env=rank_environment(rank, 2, FEEDLINE_SOCKET=server.socket))
        for rank in range(2)
    ]
    said = [rank.finish()[0] for rank in ranks]
    assert {lines[-1][1] for lines in said} == {server.process.pid}
    for epoch in range(2):
        batches = [[line for line in lines if line[0] == epoch] for lines in said]
        assert len(batches[0]) == len(batches[1]), "ranks have equally many batches"
        sizes = [[len(keys) for _, keys, _ in rank] for rank in batches]
        assert all(abs(left - right) <= 1 for left, right in zip(*sizes, strict=True))
        rows = [row for rank in batches for _, keys, valid in rank for row in zip(keys, valid, strict=True)]
        once = [key for key, valid in rows if valid]
        assert len(set(once)) == len(once)
        assert len(once) == (96 if tail == "drop" else 100)
        assert len(rows) - len(once) == (12 if tail == "pad" else 0)


def test_local_ranks_share_one_private_sidecar(script, dataset) -> None:
    launcher = {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test", "MASTER_PORT": "1"}
    ranks = [
        script(TAKE_ALL, dataset.pattern, "drop", env=rank_environment(rank, 2, LOCAL_RANK=str(rank), **launcher))
        for rank in range(2)
    ]
    said = [rank.finish()[0] for rank in ranks]
    pids = {lines[-1][1] for lines in said}
    assert len(pids) == 1
    keys = [key for lines in said for epoch, *rest in lines if epoch == 0 for key in rest[0]]
    assert len(set(keys)) == len(keys) == 96
    assert wait_gone(pids.pop(), 10)
    folder = Path(os.environ["XDG_RUNTIME_DIR"], "feedline")
    assert not [path.name for path in folder.iterdir() if path.name.startswith("run-")]


ONE_EPOCH = """
loader = load(sys.argv[1])
say(loader._known()["sidecar_pid"], [batch.sample_keys for batch in loader])
"""


@pytest.mark.parametrize(
    "end", ["", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(1)", "iter(loader); next(iter(loader))"]
)  # fmt: skip
def test_a_private_sidecar_ends_with_its_user(script, dataset, end) -> None:
    one = script(ONE_EPOCH + end, dataset.pattern)
    pid, _keys = one.hear()
    one.finish(check=False)
    assert wait_gone(pid, 10)


def holders(path: Path) -> set[int]:
    """The processes that have `path` open."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(descriptor) == str(path):
                found.add(int(descriptor.parts[2]))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_private_sidecar_ends_though_it_builds_an_index(script, tmp_path, number) -> None:
    shard = tmp_path / "long.tar.xz"
    # Zeros without end: nobody waits until they have been looked through.
    packed = lzma.compress(bytes(64 << 20), preset=0)
    with shard.open("wb") as file:
        file.writelines(packed for _ in range(2000))
    one = script("say(); load(sys.argv[1]).peek()", str(shard))
    one.hear()
    assert within(20, lambda: bool(holders(shard))), "the index is being built"
    (pid,) = holders(shard)
    one.process.send_signal(number)
    one.process.wait(timeout=10)
    assert wait_gone(pid, 10)


OUT_OF_THREADS = """
import resource
from feedline import sidecar
sidecar.locate(None, None)
pid = sidecar._private.process.pid
with open(f"/proc/{pid}/statm") as statm:
    size = int(statm.read().split()[0]) * resource.getpagesize()
resource.prlimit(pid, resource.RLIMIT_AS, (size, size))
say(pid)
try:
    load(sys.argv[1]).peek()
    say("served")
except feedline.LoaderError as error: say(str(error))
"""


def test_a_private_sidecar_ends_though_it_has_no_room_for_a_thread(script, dataset) -> None:
    one = script(OUT_OF_THREADS, dataset.pattern)
    (pid,) = one.hear()
    [[words]], _errors = one.finish()
    # The memory of a thread that ended before may do for the new one.
    told = ("no room for a thread that builds an index", "ended it", "it ended with status")
    assert words == "served" or any(reason in words for reason in told)
    assert wait_gone(pid, 10)


def test_a_bare_environment(script, dataset, load) -> None:
    """No PATH, no HOME, no cargo: the wheel alone suffices."""
    expected = [batch.sample_keys for batch in load()]
    environment = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}
    [[_pid, keys]], errors = script(ONE_EPOCH, dataset.pattern, is_bare=True, env=environment).finish()
    assert keys == expected
    # A wait of ten seconds speaks up, and on a busy machine there may be one.
    assert [line for line in errors.splitlines() if not line.startswith("waiting for ")] == []


def test_the_runtime_folder_is_the_user_s_own(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = sidecar_module.runtime_folder()
    assert folder == tmp_path / "feedline"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="nobody else may enter"):
        sidecar_module.runtime_folder()
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(PermissionError, match="remove it"):
        sidecar_module.runtime_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such/folder")
    assert sidecar_module.runtime_folder() == Path(f"/tmp/feedline-{os.geteuid()}")


def test_sockets_of_killed_sidecars_are_swept(monkeypatch, tmp_path) -> None:
    stale, fresh, live = (tmp_path / f"{name}.sock" for name in ("stale", "fresh", "live"))
    listener = socket.socket(socket.AF_UNIX)
    for path in (stale, fresh):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    with listener:
        listener.bind(str(live))
        listener.listen()
        for path in (stale, live):
            os.utime(path, (1, 1))
        sidecar_module._sweep(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"fresh.sock", "live.sock"}


# The trainer dies.

TAKE_TWO = """
loader = load(sys.argv[1])
iterator = iter(loader)
batches = [next(iterator) for _ in range(2)]
say("holding")
time.sleep(60)
"""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memfd_bytes(pid: int) -> int:
    """Bytes of memfds that process `pid` maps."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "/memfd:" in line:
            start, end = line.split()[0].split("-")
            total += int(end, 16) - int(start, 16)
    return total


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_nothing_is_left_of_a_dead_trainer(script, serve, dataset, load, number) -> None:
    server = serve("--workers", "1")
    pid = server.process.pid
    # What a first job leaves for good, the index, is there after it.
    first = load(sidecar=server.socket)
    assert len(list(first)) == 13
    first.close()
    assert within(5, lambda: memfd_bytes(pid) == 0), "the first job's ring is gone"
    before = descriptors(pid), memfd_bytes(pid)
    trainer = script(TAKE_TWO, dataset.pattern, env={"FEEDLINE_SOCKET": server.socket})
    assert trainer.hear() == ["holding"]
    assert memfd_bytes(pid) > 0
    trainer.process.send_signal(number)
    trainer.process.wait(timeout=10)
    assert within(2, lambda: (descriptors(pid), memfd_bytes(pid)) == before), (
        f"{descriptors(pid)} descriptors and {memfd_bytes(pid)} bytes, before: {before}"
    )
    assert len(list(load(sidecar=server.socket))) == 13


def anonymous_kib(pid: int) -> int:
    """Resident private memory, which the page cache and the rings are no part of."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


def test_memory_stays_flat_over_epochs(serve, load) -> None:
    server = serve("--workers", "2")
    loader = load(sidecar=server.socket)

    def epochs(count: int) -> tuple[int, int]:
        for _ in range(count):
            for _batch in loader:
                pass
        return anonymous_kib(server.process.pid), anonymous_kib(os.getpid())

    before, after = epochs(5), epochs(20)
    grown = [now - then for then, now in zip(before, after, strict=True)]
    assert max(grown) < 4096, f"KiB grown over 20 epochs: sidecar {grown[0]}, trainer {grown[1]}"


# The sidecar dies.


def test_a_dead_sidecar_is_an_exception_with_the_place(load, serve) -> None:
    expected = [batch.sample_keys for batch in load()]
    server = serve("--workers", "1")
    loader = load(sidecar=server.socket, slots=4)
    iterator = iter(loader)
    keys = [next(iterator).sample_keys for _ in range(2)]
    server.kill()
    started = time.monotonic()
    with pytest.raises(feedline.SidecarExitError, match="resume at epoch 0") as raised:
        for batch in iterator:
            keys.append(batch.sample_keys)
    assert time.monotonic() - started < 2
    assert (raised.value.epoch, raised.value.position) == (0, 8 * len(keys))
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 8 * len(keys))
    resumed = load()
    resumed.load_state_dict(state)
    assert keys + [batch.sample_keys for batch in resumed] == expected


def test_no_sidecar_at_the_socket(load, tmp_path) -> None:
    with pytest.raises(feedline.SidecarExitError, match="feedline serve --socket"):
        len(load(sidecar=tmp_path / "none.sock"))


def test_a_killed_private_sidecar_is_started_again(script, dataset) -> None:
    code = """
loader = load(sys.argv[1], slots=4)
first = loader._known()["sidecar_pid"]
iterator = iter(loader)
keys = [next(iterator).sample_keys]
os.kill(first, signal.SIGKILL)
try:
    for batch in iterator: keys.append(batch.sample_keys)
except feedline.SidecarExitError as error:
    say("error", error.epoch, error.position)
loader.load_state_dict(loader.state_dict())
keys += [batch.sample_keys for batch in loader]
say("keys", [key for batch in keys for key in batch], first != loader._known()["sidecar_pid"])
try: os.waitpid(first, os.WNOHANG)
except ChildProcessError: say("no zombie")
"""
    said, _errors = script(code, dataset.pattern).finish()
    assert said[0][0] == "error"
    assert said[0][2] % 8 == 0
    assert sorted(said[1][1]) == dataset.keys
    assert said[1][2] is True
    assert said[2] == ["no zombie"]


# Signals.


@pytest.fixture
def silent_sidecar(tmp_path):
    """A socket that takes connections and never answers."""
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield path


CTRL_C = """
{before}
try:
    say("waiting")
    {wait}
except KeyboardInterrupt: say("interrupted", time.time())
{after}
"""


def check_ctrl_c(waiting, stop) -> float:
    assert waiting.hear() == ["waiting"]
    stop()
    status = Path(f"/proc/{waiting.process.pid}/stat")
    assert within(10, lambda: status.read_text().rpartition(")")[2].split()[0] == "S"), "it waits"
    sent = time.time()
    waiting.process.send_signal(signal.SIGINT)
    word, at = waiting.hear()
    assert word == "interrupted"
    return at - sent


def test_ctrl_c_while_connecting(script, dataset, silent_sidecar) -> None:
    code = CTRL_C.format(before="loader = load(sys.argv[1], sidecar=sys.argv[2])", wait="len(loader)", after="")
    waiting = script(code, dataset.pattern, silent_sidecar)
    assert check_ctrl_c(waiting, lambda: None) < 1
    waiting.finish()


def test_ctrl_c_while_a_private_sidecar_is_silent(script, silent_sidecar) -> None:
    waiting = script(CTRL_C.format(before="", wait="feedline._native.Anchor(sys.argv[1])", after=""), silent_sidecar)
    assert check_ctrl_c(waiting, lambda: None) < 1
    waiting.finish()


@pytest.fixture
def full_sidecar(tmp_path):
    """A socket that takes no connection, because as many as may wait do so."""
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        yield path


def test_ctrl_c_while_a_sidecar_takes_nobody_in(script, full_sidecar) -> None:
    waiting = script(CTRL_C.format(before="", wait="feedline._native.Anchor(sys.argv[1])", after=""), full_sidecar)
    assert check_ctrl_c(waiting, lambda: None) < 1
    waiting.finish()


def test_a_sidecar_that_takes_nobody_in_is_a_stall(load, full_sidecar) -> None:
    with pytest.raises(feedline.StallError, match="sidecar's answer"):
        len(load(sidecar=full_sidecar, timeout=0.2))


def test_ctrl_c_while_waiting_for_a_batch(script, dataset, serve) -> None:
    server = serve("--workers", "1")
    before = "loader = load(sys.argv[1], sidecar=sys.argv[2], slots=4); iterator = iter(loader); next(iterator)"
    after = 'say([batch.sample_keys for batch in iterator])'
    code = CTRL_C.format(before=before, wait="[batch.sample_keys for batch in load(sys.argv[1], sidecar=sys.argv[2])]",
                         after=after)  # fmt: skip
    waiting = script(code, dataset.pattern, server.socket)
    took = check_ctrl_c(waiting, lambda: server.process.send_signal(signal.SIGSTOP))
    server.process.send_signal(signal.SIGCONT)
    assert took < 1
    [[keys]], _errors = waiting.finish()
    assert len(keys) == 12, "the iteration that was under way goes on"


def test_a_signal_handler_s_exception_ends_the_wait(script, dataset, silent_sidecar) -> None:
    code = """
class Alarm(Exception): pass
def ring(number, frame): raise Alarm("the alarm rang")
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try: len(load(sys.argv[1], sidecar=sys.argv[2]))
except Alarm as alarm: say(str(alarm))
"""
    assert script(code, dataset.pattern, silent_sidecar).finish()[0] == [["the alarm rang"]]


def test_a_wait_without_progress_raises(load, serve, silent_sidecar) -> None:
    with pytest.raises(feedline.StallError, match="sidecar"):
        len(load(sidecar=silent_sidecar, timeout=0.2))
    server = serve("--workers", "1")
    loader = load(sidecar=server.socket, timeout=0.5, slots=4)
    iterator = iter(loader)
    keys = [next(iterator).sample_keys]
    os.kill(server.process.pid, signal.SIGSTOP)
    with pytest.raises(feedline.StallError, match="slots ready"):
        while True:
            keys.append(next(iterator).sample_keys)
    os.kill(server.process.pid, signal.SIGCONT)
    keys += [batch.sample_keys for batch in iterator]
    assert len(keys) == 13, "a stall is no end: the next call waits again"


def test_other_threads_run_while_one_waits(script, dataset, silent_sidecar) -> None:
    code = """
import threading
counted = 0
def count():
    global counted
    while counted < 50: counted += 1; time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=count).start()
try: len(load(sys.argv[1], sidecar=sys.argv[2]))
except KeyboardInterrupt: say(counted)
"""
    assert script(code, dataset.pattern, silent_sidecar).finish()[0] == [[50]]


# Forks.

FORK = """
loader = load(sys.argv[1])
expected = [batch.sample_keys for batch in loader]
loader.set_epoch(0)
iterator = iter(loader)
batch = next(iterator)
held = batch["label"]
def in_child():
    for use in (lambda: batch["image"], lambda: list(batch), lambda: batch.sample_keys, lambda: batch.to("cpu"),
                lambda: next(iterator)):
        try: use()
        except feedline.ForkedError: pass
        else: return "a parent's batch was usable"
    loader.set_epoch(0)
    if [batch.sample_keys for batch in loader] != expected: return "the child's batches differ"
    return "well"
"""


def test_fork(script, dataset) -> None:
    code = FORK + """
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    try: words = in_child()
    except BaseException as error: words = repr(error)
    os.write(write, words.encode())
    os._exit(0)
os.close(write)
say(os.read(read, 1000).decode(), os.waitpid(pid, 0)[1])
say([batch.sample_keys] + [batch.sample_keys for batch in iterator] == expected)
"""
    assert script(BORROWING + code, dataset.pattern, env={"FEEDLINE_TENSORS": "torch"}).finish()[0] == [["well", 0], [True]]


#: Batches large enough to lie in the ring.
BORROWING = """
FIELDS["image"] = feedline.Image(["jpg"], feedline.RandomResizedCrop(64))
"""


def test_a_forked_child_that_ends_the_ordinary_way_harms_nobody(script, dataset) -> None:
    """Its copies of the parent's objects are destroyed, interpreter and all."""
    code = BORROWING + FORK + """
import multiprocessing
def child(): print(json.dumps(["child", in_child()]), flush=True)
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join()
say("parent", process.exitcode, len(list(iterator)))
"""
    assert script(code, dataset.pattern).finish()[0] == [["child", "well"], ["parent", 0, 12]]


def test_a_sidecar_lives_as_long_as_a_forked_child_uses_it(script, dataset) -> None:
    code = """
loader = load(sys.argv[1])
pid = loader._known()["sidecar_pid"]
if os.fork() > 0:
    say("parent", pid)
    sys.exit(0)
iterator = iter(loader)
next(iterator)
sys.stdin.read()
rest = sum(1 for batch in iterator)
say("child", loader._known()["sidecar_pid"], rest)
"""
    family = script(code, dataset.pattern)
    said, _errors = family.finish()
    pid = next(line[1] for line in said if line[0] == "parent")
    assert ["child", pid, 12] in said
    assert wait_gone(pid, 10)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loaders_work_in_worker_processes(script, dataset, method, tmp_path) -> None:
    module = tmp_path / "worker.py"
    module.write_text("def keys_of(loader): return [batch.sample_keys for batch in loader]\n")
    code = """
import multiprocessing
sys.path.insert(0, sys.argv[3])
from worker import keys_of
if __name__ == "__main__":
    loader = load(sys.argv[1])
    expected = keys_of(loader)
    loader.set_epoch(0)
    with multiprocessing.get_context(sys.argv[2]).Pool(1) as pool:
        say(pool.apply(keys_of, (loader,)) == expected)
"""
    assert script(code, dataset.pattern, method, str(tmp_path)).finish()[0] == [[True]]


def test_two_threads_in_one_iterator_are_told(load, serve) -> None:
    server = serve("--workers", "1")
    iterator = iter(load(sidecar=server.socket, slots=4, timeout=2))
    next(iterator)
    os.kill(server.process.pid, signal.SIGSTOP)
    errors = []

    def drain() -> None:
        try:
            while True:
                next(iterator)
        except (RuntimeError, StopIteration) as error:
            errors.append(error)

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.kill(server.process.pid, signal.SIGCONT)
    assert sorted(type(error) for error in errors if "another thread" in str(error)) == [RuntimeError]
    assert any(isinstance(error, feedline.StallError) for error in errors)
