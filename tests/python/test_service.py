"""The service that runs for weeks: its file, its end, its status, its limits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import datasets
import pytest
import service
from conftest import Sidecar, within
from service import COMMAND, Raw, frozen

import feedline

DEPLOY = Path(__file__).parent.parent.parent / "tools" / "deploy"


@pytest.fixture
def connect() -> Iterator[Callable[[str], Raw]]:
    """Makes clients by hand; they are gone at the end of the test."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(Raw(path)))


# The end.

TAKE = """
import zlib
loader = load(sys.argv[1], sidecar=sys.argv[2] or None, batch_size=4)
state, last = json.loads(sys.argv[3]), int(sys.argv[4])
if state: loader.load_state_dict(state)
try:
    while loader.epoch < last:
        epoch = loader.epoch
        for batch in loader:
            say(epoch, batch.sample_keys, zlib.crc32(batch["image"].tobytes()), batch["label"].tolist())
            if sys.argv[5:]: sys.stdin.readline(); del sys.argv[5:]
    say("done")
except feedline.SidecarExitError as error:
    say("ended", str(error), error.epoch, error.position, loader.state_dict())
"""

EPOCHS = 2


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> datasets.Dataset:
    """So many samples that an end in the middle of an epoch is one."""
    return datasets.write(tmp_path_factory.mktemp("many"), 1500)


def take_all(said: list[list], script) -> list:
    """Hears a script until it says why it stopped."""
    while isinstance((line := script.hear())[0], int):
        said.append(line)
    script.finish()
    return line


def test_sigterm_finishes_hands_over_and_loses_nothing(script, serve, many) -> None:
    """Two ranks under load: what they took before the end and after it is what an undisturbed run takes."""

    def rank(number: int, path: str, state: object, *gate: str):
        environment = {"RANK": str(number), "WORLD_SIZE": "2"}
        arguments = (many.pattern, path, json.dumps(state), str(EPOCHS), *gate)
        return script(TAKE, *arguments, env=environment, stdin=bool(gate))

    undisturbed = serve("--workers", "2")
    expected: list[list[list]] = [[], []]
    for number in range(2):
        assert take_all(expected[number], rank(number, undisturbed.socket, None)) == ["done"]

    taken: list[list[list]] = [[], []]
    states: list[object] = [None, None]
    for _ in range(2):
        server = serve("--workers", "2")
        ranks = [rank(number, server.socket, states[number], "gate") for number in range(2)]
        for number in range(2):
            taken[number].append(ranks[number].hear())
        # Both have begun: only now do they run, so that neither is done before the signal.
        for number in range(2):
            ranks[number].process.stdin.write(b"go\n")
            ranks[number].process.stdin.flush()
        for number in range(2):
            taken[number] += [ranks[number].hear() for _ in range(10)]
        server.process.send_signal(signal.SIGTERM)
        for number in range(2):
            last, words, epoch, position, states[number] = take_all(taken[number], ranks[number])
            assert last == "ended"
            assert f"the sidecar at {server.socket} is shutting down (SIGTERM)" in words
            assert f"resume at epoch {epoch}, position {position}" in words
            state = states[number]
            assert (state["epoch"], state["position"]) == (epoch, position)
        assert server.process.wait(timeout=30) == 0
        assert not os.path.exists(server.socket)
    server = serve("--workers", "2")
    for number in range(2):
        assert take_all(taken[number], rank(number, server.socket, states[number])) == ["done"]
        assert taken[number] == expected[number]


def test_a_private_sidecar_drains_too(script, many, serve) -> None:
    undisturbed, expected = serve("--workers", "2"), []
    assert take_all(expected, script(TAKE, many.pattern, undisturbed.socket, "null", str(EPOCHS))) == ["done"]
    code = TAKE.replace("try:", 'say("pid", loader._known()["sidecar_pid"])\ntry:')
    taken: list[list] = []
    trainer = script(code, many.pattern, "", "null", str(EPOCHS))
    pid = trainer.hear()[1]
    taken += [trainer.hear() for _ in range(10)]
    os.kill(pid, signal.SIGTERM)
    last, words, _epoch, _position, state = take_all(taken, trainer)
    assert last == "ended"
    assert "is shutting down (SIGTERM)" in words
    assert "it ended with status 0" in words
    assert take_all(taken, script(TAKE, many.pattern, "", json.dumps(state), str(EPOCHS))) == ["done"]
    assert taken == expected


@contextmanager
def stopped_work(server: Sidecar, iterator: Iterator) -> Iterator[service.Frozen]:
    """The workers of `server` stand still, with a batch of `iterator`'s stream begun and others ready."""

    def slots() -> dict[str, int]:
        return service.status(server.socket)["streams"][0]["slots"]

    assert within(30, lambda: slots()["ready"] >= 5)
    with frozen(server.process.pid, "feedline-work") as workers:
        for _ in range(3):
            next(iterator)
        assert within(30, lambda: slots()["filling"] > 0)
        yield workers


def test_an_end_that_takes_its_time_is_told_and_can_be_cut(load, serve) -> None:
    server = serve("--workers", "1")
    loader = load(sidecar=server.socket)
    iterator = iter(loader)
    next(iterator)
    with stopped_work(server, iterator) as workers:
        server.process.send_signal(signal.SIGTERM)
        assert within(30, lambda: service.status(server.socket)["state"] == "draining")
        # Nobody is let in any more, with the reason.
        with pytest.raises(feedline.SidecarExitError, match=r"is shutting down \(SIGTERM\) and opens no stream"):
            load(sidecar=server.socket).peek()
        assert server.process.poll() is None, "batches are being finished"
        server.process.send_signal(signal.SIGTERM)
        workers.bury()
        assert server.process.wait(timeout=30) == 0
    with pytest.raises(feedline.SidecarExitError, match=r"shutting down \(SIGTERM\): resume at epoch 0") as caught:
        while True:
            batch = next(iterator)
    assert (caught.value.epoch, caught.value.position) == (0, loader.state_dict()["position"])
    assert len(batch.sample_keys) == 8


def test_a_drain_ends_at_its_time_out(load, serve) -> None:
    server = serve("--workers", "1", "--drain-timeout", "1")
    iterator = iter(load(sidecar=server.socket))
    next(iterator)
    with stopped_work(server, iterator) as workers:
        server.process.send_signal(signal.SIGINT)
        workers.bury()
        assert server.process.wait(timeout=30) == 0
    with pytest.raises(feedline.SidecarExitError, match=r"\(SIGINT\): resume at epoch 0"):
        list(iterator)


def test_an_idle_service_ends_at_once(serve, connect) -> None:
    server = serve("--workers", "1")
    idle = connect(server.socket)
    assert idle.hello()["type"] == "welcome"
    server.process.send_signal(signal.SIGTERM)
    told = idle.receive()
    assert told is not None
    assert (told["type"], told["kind"]) == ("failed", "sidecar_exit")
    assert idle.receive() is None
    assert server.process.wait(timeout=30) == 0


# The file.


def run_serve(*options: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "serve", *options], capture_output=True, text=True, timeout=60, **more)


def start(*command: str, **more) -> tuple[subprocess.Popen[bytes], dict]:
    """A service that was started in some way, and what it says once it is ready."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **more)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline() or b"null")


def end(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=30)
    finally:
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def test_a_service_takes_its_options_from_a_file(load, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "feedline.toml").write_text('socket = "sidecar.sock"\nworkers = 3\nreader = "pread"\njson = true\n')
    monkeypatch.chdir(tmp_path)
    process, ready = start(*COMMAND, "serve", "--config", "etc/feedline.toml", "--workers", "1")
    assert ready["listening"] == str(folder / "sidecar.sock"), "relative to the file"
    assert ready["workers"] == 1, "the command line wins"
    assert "pread" in ready["reader"]
    assert len(list(load(sidecar=ready["listening"]))) == 13
    assert end(process) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workers = 0\n", ["feedline.toml:1: workers: ", "a whole number from 1 to 4096"]),
        ("\nsockets = 'x'\n", ["feedline.toml:2: ", "`sockets`", "`socket`"]),
        ("workers = 2\n", ["--socket", "--config", "systemd"]),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, text, words) -> None:
    path = tmp_path / "feedline.toml"
    path.write_text(text)
    done = run_serve("--config", str(path))
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert run_serve("--config", str(tmp_path / "missing.toml")).returncode == 1


# The service manager.


class Manager:
    """Hears what a service tells its manager."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(30)

    def hear(self, word: str) -> str:
        """The next datagram with `word` in it."""
        while word not in (told := self.socket.recv(4096).decode()):
            pass
        return told

    def waiting(self) -> list[str]:
        """What has come and was not heard yet."""
        told = []
        self.socket.setblocking(False)
        try:
            while True:
                told.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            self.socket.settimeout(30)
            return told


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_service_manager_is_told(tmp_path, is_abstract) -> None:
    address = f"@feedline-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    manager = Manager(address)
    environment = {**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
    path = str(tmp_path / "sidecar.sock")
    process, _ready = start(*COMMAND, "serve", "--json", "--workers", "1", "--socket", path, env=environment)
    told = manager.hear("READY=1")
    assert f"MAINPID={process.pid}\n" in told
    assert "STATUS=0 connections, 0 streams" in told
    manager.hear("WATCHDOG=1")
    process.send_signal(signal.SIGTERM)
    assert "STATUS=draining 0 streams" in manager.hear("STOPPING=1")
    assert end(process) == 0
    manager.socket.close()


@pytest.mark.parametrize(
    ("thread", "words"),
    [
        ("feedline-feeder", "the feeder stood still"),
        ("feedline-work", "every read and every worker stood still"),
    ],
)
def test_the_watchdog_hears_nothing_of_a_service_that_is_stuck(load, tmp_path, thread, words) -> None:
    manager = Manager(str(tmp_path / "notify"))
    environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
    path = str(tmp_path / "sidecar.sock")
    process, _ready = start(
        *COMMAND, "serve", "--json", "--workers", "1", "--socket", path, env=environment, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    iterator = iter(load(sidecar=path))
    next(iterator)

    def stuck() -> None:
        while words not in (line := process.stderr.readline().decode()):
            assert line, "the log goes on"

    with frozen(process.pid, thread) as stopped:
        stuck()
        manager.waiting()
        stuck()
        assert not [told for told in manager.waiting() if "WATCHDOG" in told]
        stopped.thaw()
        manager.hear("WATCHDOG=1")
    assert len(list(iterator)) == 12
    assert end(process) == 0
    manager.socket.close()


#: Becomes the command in its arguments, with the socket that is descriptor `argv[1]` handed over as systemd does.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "feedline", "serve", "--json", "--workers", "1", *sys.argv[2:]])
"""


def activate(listener: socket.socket, *options: str, **more):
    number = str(listener.fileno())
    return start(sys.executable, "-c", ACTIVATE, number, *options, pass_fds=[listener.fileno()], **more)


def test_a_socket_that_is_handed_over_outlives_the_service(script, dataset, tmp_path) -> None:
    path = str(tmp_path / "sidecar.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        process, ready = activate(listener)
        assert ready["listening"] == path
        code = 'say(len(list(load(sys.argv[1], sidecar=sys.argv[2]))))'
        assert script(code, dataset.pattern, path).finish()[0] == [[13]]
        assert end(process) == 0
        assert os.path.exists(path), "it is the manager's"
        # Who comes while no service runs is served by the next.
        waiting = Raw(path)
        waiting.send({"type": "hello", "protocol": service.PROTOCOL, "version": "test"})
        process, _ready = activate(listener, "--socket", path)
        assert waiting.receive()["pid"] == process.pid
        waiting.close()
        assert end(process) == 0


def test_only_a_socket_that_clients_can_come_to_is_taken(tmp_path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams, socket.socket(socket.AF_UNIX) as listener:
        datagrams.bind(str(tmp_path / "datagrams"))
        listener.bind(str(tmp_path / "stream"))
        for handed, words, options in (
            (datagrams, b"a Unix socket of another type", ()),
            (listener, b"does not listen", ()),
            (listener, b"leave the socket out of one", ("--socket", str(tmp_path / "other"))),
        ):
            if options:
                listener.listen()
            process, ready = activate(handed, *options, stderr=subprocess.PIPE)
            assert ready is None
            assert words in process.communicate(timeout=30)[1]
            assert process.returncode == 2


def test_systemd_s_own_activation(script, dataset, tmp_path) -> None:
    if shutil.which("systemd-socket-activate") is None:
        pytest.skip("systemd-socket-activate is not installed")
    path = str(tmp_path / "sidecar.sock")
    process = subprocess.Popen(
        ["systemd-socket-activate", "-l", path, "-E", "HOME", *COMMAND, "serve", "--json", "--workers", "1"],
        stdout=subprocess.PIPE,
    )
    assert within(30, lambda: os.path.exists(path))
    code = 'say(len(list(load(sys.argv[1], sidecar=sys.argv[2]))))'
    assert script(code, dataset.pattern, path).finish()[0] == [[13]]
    assert end(process) == 0


# Status.


def run_status(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run([*COMMAND, "status", *options], capture_output=True, text=True, timeout=60, env=variables)


def test_status_tells_what_a_sidecar_does(load, serve) -> None:
    server = serve("--workers", "2")
    loaders = [load(sidecar=server.socket, name=f"job {rank}", rank=rank, world_size=2, slots=4) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    held = [next(iterators[1]) for _ in range(3)]
    told = service.status(server.socket)
    assert (told["pid"], told["socket"], told["state"]) == (server.process.pid, server.socket, "serving")
    assert (told["workers"], told["private"]) == (2, False)
    assert told["version"] == server.ready["version"]
    assert told["connections"] == {"open": 2, "limit": 1024, "refused": 0}
    assert told["memory"]["resident_bytes"] > told["memory"]["anonymous_bytes"] > 0
    assert told["memory"]["ring_bytes"] == sum(stream["ring_bytes"] for stream in told["streams"])
    first, second = told["streams"]
    jobs = [(stream["job"], stream["rank"], stream["world_size"]) for stream in (first, second)]
    assert jobs == [("job 0", 0, 2), ("job 1", 1, 2)]
    for stream in (first, second):
        assert (stream["pid"], stream["uid"]) == (os.getpid(), os.geteuid())
        assert (stream["samples"], stream["shards"], stream["batches_per_epoch"]) == (100, 4, 7)
        assert sum(stream["slots"].values()) == 4
        assert set(stream["waiting_s"]) == {"storage", "decode", "slots", "start"}
        assert stream["snapshot_age_s"] is None
    # The trainer's place, not the sidecar's, which has read ahead.
    assert (first["epoch"], first["batch"], first["position"]) == (0, 0, 0)
    assert (second["epoch"], second["batch"], second["position"]) == (0, 3, loaders[1].state_dict()["position"])
    del held
    assert len(list(iterators[1])) == 4
    assert within(30, lambda: service.status(server.socket)["streams"][1]["rows"] >= 50)

    text = run_status("--socket", server.socket).stdout
    assert "\x1b" not in text
    assert f"process {server.process.pid}" in text
    assert "job 1" in text
    watch = subprocess.Popen(
        [*COMMAND, "status", "--json", "--watch=1", "--socket", server.socket], stdout=subprocess.PIPE
    )
    assert watch.stdout is not None
    for _ in range(2):
        assert json.loads(watch.stdout.readline())["sidecars"][0]["pid"] == server.process.pid
    server.kill()
    assert watch.stdout.read() == b""
    assert watch.wait(timeout=30) == 1
    watch.stdout.close()


def test_the_age_of_a_snapshot_grows_and_is_shared(load, serve, tmp_path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "base"), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for number in range(12):
            transaction.put(str(number).encode(), datasets.photo(number, 40, 30))
    server = serve("--workers", "1")
    fields = {"image": feedline.Image(["image"], feedline.Resize((16, 16)))}
    first = load(str(tmp_path / "base"), sidecar=server.socket, fields=fields, batch_size=4)
    first.peek()
    (early,) = service.status(server.socket)["streams"]
    second = load(str(tmp_path / "base"), sidecar=server.socket, fields=fields, batch_size=4)
    second.peek()
    old, new = service.status(server.socket)["streams"]
    assert old["snapshot_age_s"] > early["snapshot_age_s"] >= 0
    assert new["snapshot_age_s"] == old["snapshot_age_s"], "one dataset, one snapshot"
    assert "its LMDB snapshot is" in run_status("--socket", server.socket).stdout


def names(value: object) -> set[str]:
    """The keys of objects in `value`; those of counters by a name of the data's are no keys."""
    if isinstance(value, dict):
        inner = [names(item) for key, item in value.items() if key not in ("faults", "waiting_s")]
        return set(value).union(*inner)
    return set().union(*map(names, value)) if isinstance(value, list) else set()


def test_every_key_of_the_json_is_documented(load, serve) -> None:
    server = serve("--workers", "1")
    load(sidecar=server.socket).peek()
    whole = json.loads(run_status("--json", "--socket", server.socket).stdout)
    text = (DEPLOY / "STATUS.md").read_text()
    assert {name for name in names(whole) if f"`{name}`" not in text} == set()


def test_status_finds_the_sidecars_of_a_user(serve, dataset, script, monkeypatch, tmp_path) -> None:
    # Not the folder of this test's own private sidecars; socket paths are short.
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "FEEDLINE_SOCKET": ""}
    folder = tmp_path / "feedline"
    folder.mkdir(mode=0o700)
    nobody = run_status(**environment)
    if not list(Path(f"/tmp/feedline-{os.geteuid()}").glob("*.sock")):
        assert nobody.returncode == 1
        assert "no sidecar answers in" in nobody.stderr
        assert "feedline serve --socket" in nobody.stderr
    code = "loader = load(sys.argv[1]); loader.peek(); say(loader._known()['sidecar_pid']); sys.stdin.read()"
    private = script(code, dataset.pattern, env=environment, stdin=True)
    (pid,) = private.hear()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "dead.sock"))
    found = json.loads(run_status("--json", **environment).stdout)
    told = {sidecar["pid"]: sidecar for sidecar in found["sidecars"]}
    assert told[pid]["private"]
    assert str(folder / "dead.sock") in [silent["socket"] for silent in found["silent"]]
    one = run_status("--socket", str(folder / "dead.sock"))
    assert one.returncode == 1
    assert "no sidecar answers at" in one.stderr
    private.finish()


# Limits.

OTHER_UID = 65534


def test_one_user_s_connections_leave_room_for_others(serve, connect) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    server = serve("--workers", "1", "--connections", "8", "--allow-uid", str(OTHER_UID))
    Path(server.socket).parent.chmod(0o711)
    Path(server.socket).parent.parent.chmod(0o711)
    flood = [connect(server.socket) for _ in range(4)]
    assert {client.hello()["type"] for client in flood} == {"welcome"}
    refused = connect(server.socket)
    told = refused.hello()
    assert (told["type"], told["kind"]) == ("failed", "resources")
    assert "4 connections of uid 0 open" in told["message"]
    assert "--connections-per-uid" in told["message"]
    with pytest.raises(feedline.ResourceError, match="4 connections of uid 0"):
        feedline.Loader([str(DEPLOY / "README.md")], sidecar=server.socket).peek()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(OTHER_UID)
            os._exit(0 if Raw(server.socket).hello()["type"] == "welcome" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0, "another user finds room"
    flood.pop().close()
    assert within(30, lambda: connect(server.socket).hello()["type"] == "welcome")


def test_users_who_are_not_allowed_are_refused(serve) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    server = serve("--workers", "1", "--allow-uid", str(OTHER_UID))
    for folder in Path(server.socket).parents[:2]:
        folder.chmod(0o711)
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(OTHER_UID - 1)
            told = Raw(server.socket).hello()
            os._exit(0 if "--allow-uid" in told["message"] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_thousand_connections_that_say_nothing_stop_nobody(serve, load, connect) -> None:
    server = serve("--workers", "1", "--connections", "200", "--connections-per-uid", "150", "--hello-timeout", "1")
    mute = [connect(server.socket) for _ in range(1000)]
    # Refused or timed out, each is told why and then let go of.
    words = [client.receive() for client in mute]
    kinds = {told["kind"] for told in words if told is not None}
    assert all(told is not None for told in words)
    assert kinds == {"resources", "protocol"}
    assert sum(told["kind"] == "protocol" for told in words) >= 150
    assert len(list(load(sidecar=server.socket))) == 13
    told = service.status(server.socket)
    assert told["connections"]["refused"] > 0


def test_silence_has_its_bounds(serve, load, connect) -> None:
    server = serve("--workers", "1", "--hello-timeout", "1", "--idle-timeout", "1")
    mute, idle, rude = (connect(server.socket) for _ in range(3))
    assert idle.hello()["type"] == "welcome"
    rude.send({"type": "status"})
    assert "the first message of a connection is a hello" in rude.receive()["message"]
    told = mute.receive()
    assert told["message"].endswith("no hello came within 1s of the connection")
    told = idle.receive()
    assert "had no stream and said nothing for 1s" in told["message"]
    assert [client.receive() for client in (mute, idle, rude)] == [None, None, None]
    # A stream may be idle for as long as its trainer likes.
    loader = load(sidecar=server.socket)
    iterator = iter(loader)
    next(iterator)
    waiting = connect(server.socket)
    assert waiting.receive()["kind"] == "protocol", "a second has passed"
    assert len(list(iterator)) == 12


def test_descriptors_of_a_refused_crowd_are_closed(serve) -> None:
    server = serve("--workers", "1", "--connections", "16")
    before = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    for _ in range(20):
        crowd = [Raw(server.socket) for _ in range(40)]
        for client in crowd:
            client.close()
    assert within(30, lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= before)


