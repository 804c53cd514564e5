"""Shards that change, and clients that leave, while a sidecar is at work on them."""

from __future__ import annotations

import gzip
import logging
import lzma
import os
import time
from contextlib import suppress
from pathlib import Path

import datasets
import pytest
from conftest import within
from test_processes import holders

import feedline

COUNT = 400
FIELDS = {"data": feedline.Bytes("bin")}


def body(number: int, version: int) -> bytes:
    """Of one length, whatever the version."""
    return (f"sample {number:05} version {version} " * 40).encode()


def write_shards(folder: Path, version: int) -> list[Path]:
    """Two shards; those of any version have the same length."""
    folder.mkdir(exist_ok=True)
    shards = [folder / f"s-{shard}.tar" for shard in range(2)]
    for shard, path in enumerate(shards):
        numbers = range(shard * COUNT // 2, (shard + 1) * COUNT // 2)
        datasets.write_shard(path, [(f"{number:05}.bin", body(number, version)) for number in numbers])
    return shards


def take(iterator, version: int) -> int:
    """Counts the samples that come; each must be whole and of `version`."""
    taken = 0
    for batch in iterator:
        for key, data in zip(batch.sample_keys, batch["data"], strict=True):
            assert bytes(data) == body(int(key), version)
            taken += 1
    return taken


@pytest.mark.parametrize("reader", ["auto", "pread"])
@pytest.mark.parametrize("change", ["rewritten", "truncated"])
def test_a_shard_that_changes_in_mid_epoch_is_named(load, serve, tmp_path, reader, change) -> None:
    shards = write_shards(tmp_path / "now", 1)
    newer = write_shards(tmp_path / "newer", 2)
    loader = load(shards, fields=FIELDS, slots=4, sidecar=serve("--workers", "1", "--reader", reader).socket)
    iterator = iter(loader)
    assert take([next(iterator)], 1) == 8
    for path, new in zip(shards, newer, strict=True):
        if change == "rewritten":
            with path.open("r+b") as file:
                file.write(new.read_bytes())
        else:
            os.truncate(path, 4096)
    with pytest.raises(feedline.ShardError, match=r"s-[01]\.tar: .*the shard changed after it was indexed"):
        take(iterator, 1)
    del iterator
    if change == "rewritten":
        loader.set_epoch(1)
        assert take(loader, 2) == COUNT, "a new iteration indexes again"


def test_a_file_of_a_tree_that_is_cut_while_it_is_open_is_named(load, tmp_path) -> None:
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    for number in range(200):
        (folder / f"{number:03}.jpg").write_bytes(datasets.photo(number % 5, 60, 50))
    fields = {"image": feedline.Image(["jpg"], feedline.Resize(16), feedline.CenterCrop(16))}
    iterator = iter(load(tmp_path / "tree", fields=fields, slots=4))
    next(iterator)
    for path in folder.iterdir():
        os.truncate(path, 300)
    with pytest.raises(feedline.ShardError, match=r"\.jpg: .*the file changed after it was indexed"):
        list(iterator)


@pytest.mark.parametrize("reader", ["auto", "pread"])
def test_no_job_gets_the_bytes_of_another(load, serve, tmp_path, reader) -> None:
    """Jobs come and leave while their reads are in flight; their shards are alike but for the contents."""
    server = serve("--workers", "1", "--reader", reader)
    jobs = [tmp_path / f"{version}.tar" for version in range(12)]
    for version, path in enumerate(jobs):
        datasets.write_shard(path, [(f"{number:05}.bin", body(number, version) * 10) for number in range(COUNT)])
    fields = {"data": feedline.Bytes("bin", max_bytes=1 << 14)}
    descriptors = []
    for turn in range(240):
        version = turn % len(jobs)
        loader = load(jobs[version], fields=fields, batch_size=64, sidecar=server.socket, slots=8)
        for place, batch in enumerate(loader):
            for key, data in zip(batch.sample_keys, batch["data"], strict=True):
                assert bytes(data) == body(int(key), version) * 10
            if place == turn % 2:
                break
        loader.close()
        descriptors.append(len(os.listdir(f"/proc/{server.process.pid}/fd")))
    assert within(5, lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= min(descriptors)), "no file stays open"


def test_a_cut_compressed_shard_gives_what_lies_before_the_cut(load, tmp_path) -> None:
    (whole,) = write_shards(tmp_path / "plain", 1)[:1]
    packed = gzip.compress(whole.read_bytes())
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(packed[: len(packed) // 2])
    loader = load(path, fields=FIELDS, shuffle=False, damaged="skip_rest")
    assert 0 < len(loader.dataset) < COUNT // 2
    assert take(loader, 1) == len(loader.dataset)


def endless_zeros(path: Path) -> None:
    """A shard that takes minutes to look through: many GiB of zeros, packed."""
    packed = lzma.compress(bytes(64 << 20), preset=0)
    with path.open("wb") as file:
        file.writelines(packed for _ in range(2000))


def test_nobody_builds_an_index_for_a_client_that_left(script, serve, tmp_path) -> None:
    shard = tmp_path / "long.tar.xz"
    endless_zeros(shard)
    server = serve("--workers", "1")
    leaver = script("say(); load(sys.argv[1]).peek()", str(shard), env={"FEEDLINE_SOCKET": server.socket})
    leaver.hear()
    assert within(20, lambda: server.process.pid in holders(shard)), "the index is being built"
    leaver.process.kill()
    leaver.process.wait(timeout=10)
    assert within(5, lambda: not holders(shard)), "the sidecar has let go of the shard"


def test_an_index_is_built_as_long_as_one_of_several_clients_waits(script, serve, tmp_path) -> None:
    shard = tmp_path / "long.tar.xz"
    endless_zeros(shard)
    server = serve("--workers", "1")
    clients = []
    for number in range(3):
        clients.append(script("say(); load(sys.argv[1]).peek()", str(shard), env={"FEEDLINE_SOCKET": server.socket}))
        clients[-1].hear()
        assert within(20, lambda: sockets_of(server.process.pid) > number), "it is connected"
        assert within(20, lambda: server.process.pid in holders(shard)), "the index is being built"
    for client in clients[:2]:
        client.process.kill()
        client.process.wait(timeout=10)
        left = sockets_of(server.process.pid)
        assert within(5, lambda: sockets_of(server.process.pid) <= left)
        assert within(20, lambda: server.process.pid in holders(shard)), "others wait for it"
    clients[2].process.kill()
    clients[2].process.wait(timeout=10)
    assert within(5, lambda: not holders(shard)), "the sidecar has let go of the shard"


def sockets_of(pid: int) -> int:
    """Connections of a sidecar: its sockets but the one that it listens at."""
    count = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            count += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return count - 1


def test_clients_that_come_at_once_get_one_dataset(script, serve, tmp_path) -> None:
    """A cold dataset and many clients: all get it, or all get its error."""
    shards = write_shards(tmp_path / "cold", 1)
    server = serve("--workers", "1", "--cache-dir", str(tmp_path / "cache"))
    code = """
try: say(len(feedline.Loader(sys.argv[1:], fields={"data": feedline.Bytes("bin")}, timeout=60).dataset))
except feedline.ShardError as error: say(str(error))
"""
    for expected in (COUNT, f"{shards[1]}: at byte 3584: the shard is cut off inside"):
        clients = [script(code, *map(str, shards), env={"FEEDLINE_SOCKET": server.socket}) for _ in range(6)]
        answers = [client.finish()[0] for client in clients]
        assert all(str(words).startswith(str(expected)) for [[words]] in answers), answers
        os.truncate(shards[1], 4096 + 10)


def test_a_file_of_a_tree_that_is_written_in_place_is_read_anew(load, tmp_path) -> None:
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    versions = [datasets.photo(number, 60, 50) for number in range(2)]
    longest = max(map(len, versions))
    # JPEG decoders pass over what follows the end marker.
    versions = [version + bytes(longest - len(version)) for version in versions]
    for number in range(40):
        (folder / f"{number:03}.jpg").write_bytes(versions[0])
    fields = {"image": feedline.Image(["jpg"], feedline.Resize((16, 16)))}
    loader = load(tmp_path / "tree", fields=fields, slots=4, shuffle=False)
    before = [image.tolist() for batch in loader for image in batch["image"]]
    loader.close()
    path = folder / "017.jpg"
    status = path.stat()
    with path.open("r+b") as file:
        file.write(versions[1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(feedline.ShardError, match=r"017\.jpg: .*the file changed after it was indexed: .*open the dataset again"):
        list(load(tmp_path / "tree", fields=fields, slots=4, shuffle=False))
    after = [image.tolist() for batch in load(tmp_path / "tree", fields=fields, shuffle=False) for image in batch["image"]]
    changed = [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert changed == [17]


def test_a_sparse_shard_is_indexed_at_once(load, tmp_path) -> None:
    """A hole of a TiB is passed over, not read."""
    (path,) = write_shards(tmp_path / "plain", 1)[:1]
    os.truncate(path, 1 << 40)
    assert take(load(path, fields=FIELDS, shuffle=False), 1) == COUNT // 2


def test_a_private_sidecar_leaves_the_telling_to_its_client(script, tmp_path) -> None:
    damaged = datasets.write(tmp_path, 40, 1, {5: b"this is no photo"})
    one = script("for _batch in load(sys.argv[1], error_budget=0.5): pass", damaged.pattern)
    _said, errors = one.finish()
    lines = [line for line in errors.splitlines() if damaged.keys[5] in line]
    assert len(lines) == 1 and lines[0].startswith("bad sample replaced: "), errors


def test_the_end_of_a_private_sidecar_is_explained(script, dataset) -> None:
    code = """
loader = load(sys.argv[1], slots=4)
iterator = iter(loader)
next(iterator)
os.kill(loader._known()["sidecar_pid"], signal.SIGKILL)
try:
    for batch in iterator: pass
except feedline.SidecarExitError as error: say(str(error), error.epoch)
"""
    [[words, epoch]], _errors = script(code, dataset.pattern).finish()
    assert "SIGKILL ended it" in words and "resume at epoch 0" in words
    assert epoch == 0


def test_what_ends_the_stream_behind_an_epoch_concerns_the_next(load, serve, tmp_path, caplog) -> None:
    """Though what is told of an epoch is asked of the stream at its end."""
    caplog.set_level(logging.INFO, "feedline")
    shard = write_shards(tmp_path, 1)[0]
    loader = load(str(shard), sidecar=serve("--workers", "1").socket, fields=FIELDS, batch_size=25, slots=4, timeout=20)
    iterator = iter(loader)
    count = len(loader)
    for _ in range(count - 4):
        next(iterator)
    # The rest is made; the next epoch, which is read ahead, fails.
    time.sleep(0.3)
    (tmp_path / "new").mkdir()
    with shard.open("r+b") as file:
        file.write(write_shards(tmp_path / "new", 2)[0].read_bytes())
    for _ in range(4):
        next(iterator)
        time.sleep(0.1)
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.state_dict()["epoch"] == 1
    began = time.monotonic()
    assert len(list(loader)) == count
    assert time.monotonic() - began < 15, "it does not wait for a stream that has ended"
