"""What a sidecar takes of a machine: memory within a budget, few descriptors, every byte read once, fair shares."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
from conftest import Sidecar, within
from test_memory_group import MemoryGroup, group  # noqa: F401

import feedline

FIELDS = {
    "image": feedline.Image(["jpg"], feedline.RandomResizedCrop(32), feedline.RandomHorizontalFlip()),
    "label": feedline.Int("cls"),
}

#: As pages of 4 KiB and tables of a few entries have it.
MIB = 1 << 20


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> datasets.Dataset:
    """200 photos of some 50 kB, so that headers between them are little."""
    folder = tmp_path_factory.mktemp("photos")
    bodies = [datasets.photo(seed, 420, 360, quality=95) for seed in range(200)]
    return write_photos(folder, bodies)


def write_photos(folder: Path, bodies: list[bytes], shard_count: int = 4) -> datasets.Dataset:
    """A dataset of these photos."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = [f"photo{number:05d}" for number in range(len(bodies))]
    labels = [number % 7 for number in range(len(bodies))]
    shards = []
    for shard in range(shard_count):
        numbers = range(shard * len(bodies) // shard_count, (shard + 1) * len(bodies) // shard_count)
        members = [
            member
            for number in numbers
            for member in ((f"{keys[number]}.jpg", bodies[number]), (f"{keys[number]}.cls", f"{labels[number]}\n".encode()))
        ]
        shards.append(folder / f"part-{shard:06d}.tar")
        datasets.write_shard(shards[-1], members)
    pattern = f"{folder}/part-{{000000..{shard_count - 1:06d}}}.tar"
    return datasets.Dataset(pattern, shards, keys, bodies, labels)


class Metrics:
    """What a sidecar says at /metrics, at one moment."""

    def __init__(self, server: Sidecar) -> None:
        with urllib.request.urlopen(f"http://{server.ready['metrics']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        self.values = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]

    def sum(self, name: str, label: str = "") -> float:
        """All values of this name, those with `label` where one is given."""
        return sum(float(value) for key, value in self.values if re.match(rf"{name}(\{{|$)", key) and label in key)


@pytest.fixture
def measured(serve: Callable[..., Sidecar]) -> Callable[..., Sidecar]:
    """Starts sidecars that serve metrics."""
    return lambda *options: serve("--metrics", "127.0.0.1:0", *options)


def pixels(loader: feedline.Loader) -> dict[str, numpy.ndarray]:
    """One epoch: pixels by key."""
    found = {}
    for batch in loader:
        images = batch["image"].numpy()
        found.update({key: images[row].copy() for row, key in enumerate(batch.sample_keys)})
    return found


def same(left: dict[str, numpy.ndarray], right: dict[str, numpy.ndarray]) -> bool:
    return left.keys() == right.keys() and all(numpy.array_equal(left[key], right[key]) for key in left)


# Memory.


def large(side: int) -> dict[str, Any]:
    return {"image": feedline.Image(["jpg"], feedline.Resize((side, side))), "label": feedline.Int("cls")}


def test_a_ring_beyond_the_budget_is_refused_with_who_holds_what(measured, load) -> None:
    server = measured("--workers", "1", "--memory", "80M")
    # 8 slots of 8 rows of 3 x 400 x 400 bytes are 29.3 MiB.
    first = load(sidecar=server.socket, fields=large(400), name="early")
    first.peek()
    metrics = Metrics(server)
    assert metrics.sum("feedline_memory_limit_bytes") == 80 * MIB
    assert 29 * MIB < metrics.sum("feedline_memory_bytes", 'part="rings"') < 31 * MIB
    assert metrics.sum("feedline_memory_bytes", 'part="reads"') == 20 * MIB, "a quarter of a small budget"
    with pytest.raises(feedline.ResourceError) as refused:
        load(sidecar=server.socket, fields=large(500), name="late").peek()
    words = str(refused.value)
    assert re.search(r"the ring needs 8 slots x 5\.\d MiB = 4\d\.\d MiB", words), words
    assert re.search(r"only 29\.\d MiB of the memory budget are left \(80\.0 MiB by --memory", words), words
    assert re.search(r"rings hold 30\.\d MiB, reads hold 20\.0 MiB.*job \"early\" at rank 0: 30\.\d MiB", words), words
    # What is given back can be had again.
    first.close()
    assert within(10, lambda: Metrics(server).sum("feedline_streams") == 0)
    late = load(sidecar=server.socket, fields=large(500), name="late")
    assert len(pixels(late)) == 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--memory", "1M"], "a memory budget of 1.0 MiB is too small"),
        (["--memory", "lots"], '"lots" is no number of bytes'),
        (["--memory", "64M", "--cache", "63M"], "the cache of encoded samples is to have 63.0 MiB, but only 48.0 MiB"),
    ],
)
def test_options_that_cannot_be(options, words, tmp_path) -> None:
    command = [sys.executable, "-m", "feedline", "serve", "--socket", str(tmp_path / "socket"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert words in ended.stderr


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="cache must be a number of bytes or text"):
        feedline.Loader("x.tar", cache="many")
    with pytest.raises(TypeError, match="memory must be a number of bytes or text"):
        feedline.Loader("x.tar", memory=1.5)


def anonymous_bytes(pid: int) -> int:
    """Private and ring memory that is resident: all that no file backs."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+)\s*(.*)", line)
        if head:
            counts = head[1] == "0" or "memfd:" in head[2]
        elif line.startswith("Rss:") and counts:
            total += int(line.split()[1]) << 10
    return total


def test_memory_stays_within_the_budget(measured, load, photos) -> None:
    server = measured("--workers", "2", "--memory", "96M", "--cache", "8M")
    # Stacks, the runtime, and what two workers decode into.
    load(sidecar=server.socket).peek()
    before = Metrics(server)
    outside = max(0, anonymous_bytes(server.process.pid) - int(before.sum("feedline_memory_bytes"))) + 40 * MIB
    loaders = [load(photos.pattern, sidecar=server.socket, fields=large(side), seed=side) for side in (100, 200, 250)]
    for _ in range(3):
        for loader in loaders:
            assert len(pixels(loader)) == 200
            metrics = Metrics(server)
            assert metrics.sum("feedline_memory_bytes") <= 96 * MIB
            assert metrics.sum("feedline_cached_bytes") <= 8 * MIB
            assert anonymous_bytes(server.process.pid) <= metrics.sum("feedline_memory_bytes") + outside
    assert metrics.sum("feedline_cached_bytes") > 7.8 * MIB, "the cache is full"


def test_a_budget_fits_a_control_group_of_its_size(group: MemoryGroup, measured, load, photos) -> None:  # noqa: F811
    """With what is outside of the budget on top, as the documentation says: 64 MiB, and 16 MiB a worker."""
    server = measured("--workers", "1", "--memory", "96M", "--cache", "24M")
    group.add(server.process.pid)
    group.limit((96 + 64 + 16) * MIB)
    loaders = [load(photos.pattern, sidecar=server.socket, fields=large(side), seed=side) for side in (150, 200)]
    for _ in range(3):
        assert all(len(pixels(loader)) == 200 for loader in loaders)
    with pytest.raises(feedline.ResourceError, match="of the memory budget are left"):
        load(photos.pattern, sidecar=server.socket, fields=large(600)).peek()
    assert server.process.poll() is None, "the sidecar lives"


# Descriptors and threads.


def descriptors(server: Sidecar) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def threads(server: Sidecar) -> list[str]:
    """Names of its threads, but for io_uring's in the kernel."""
    names = [name.read_text().strip() for name in Path(f"/proc/{server.process.pid}/task").glob("*/comm")]
    return [name for name in names if not name.startswith("iou-")]


def test_descriptors_and_threads_are_few_and_constant(measured, load, photos) -> None:
    """Six a stream (connection, process, ring) and two a file, beside those that a sidecar starts with."""
    server = measured("--workers", "2", "--reader", "uring-direct")
    idle = descriptors(server)
    main = Path(f"/proc/{server.process.pid}/comm").read_text().strip()
    # Each thread gives itself its name.
    assert within(10, lambda: sorted(threads(server)) == ["feedline-feeder", "feedline-work0", "feedline-work1", main])
    files = len(photos.shards)
    counts = {}
    for streams in (1, 4, 8):
        loaders = [load(photos.pattern, sidecar=server.socket, seed=seed) for seed in range(streams)]
        iterators = []
        for _ in range(3):
            iterators = [pixels(loader) for loader in loaders]
            assert descriptors(server) <= idle + 6 * streams + 2 * files
        counts[streams] = descriptors(server)
        assert len(iterators) == streams
        for _ in range(2):
            for loader in loaders:
                pixels(loader)
        assert descriptors(server) == counts[streams], "another epoch takes none"
        assert len(threads(server)) == 4, "streams bring no threads"
        for loader in loaders:
            loader.close()
        assert within(10, lambda: descriptors(server) <= idle + 1), "all come back"
    assert counts[8] - counts[1] <= 7 * 6


# The cache of encoded samples.


@pytest.fixture(scope="module")
def uncached(photos: datasets.Dataset) -> dict[str, Any]:
    """Pixels of three epochs without a cache, by order."""
    found = {}
    for order in ("global", "block"):
        loader = feedline.Loader(photos.pattern, batch_size=8, order=order, seed=3, fields=FIELDS, workers=1)
        found[order] = [pixels(loader) for _ in range(3)]
        loader.close()
    return found


@pytest.mark.parametrize("reader", ["auto", "uring-direct", "pread"])
@pytest.mark.parametrize("order", ["global", "block"])
def test_a_cache_that_fits_saves_all_reads(measured, load, photos, uncached, reader, order) -> None:
    server = measured("--workers", "2", "--reader", reader, "--cache", "64M")
    # Few slots, so that little of an epoch is read ahead in the one before.
    loader = load(photos.pattern, sidecar=server.socket, order=order, shuffle=None, seed=3, slots=4)
    read = []
    for epoch in range(3):
        assert same(pixels(loader), uncached[order][epoch]), epoch
        read.append(Metrics(server).sum("feedline_read_bytes_total"))
    assert read[1] - read[0] < 0.05 * read[0]
    assert read[2] == read[1]
    metrics = Metrics(server)
    assert metrics.sum("feedline_cached_rows_total") >= 400
    assert metrics.sum("feedline_cached_bytes") >= sum(map(len, photos.photos))


def test_a_cache_of_a_third_saves_a_third(measured, load, photos, uncached) -> None:
    size = sum(map(len, photos.photos))
    server = measured("--workers", "1", "--cache", str(int(0.3 * size)))
    loader = load(photos.pattern, sidecar=server.socket, seed=3, slots=4)
    for epoch in range(3):
        assert same(pixels(loader), uncached["global"][epoch]), epoch
        if epoch == 0:
            before = Metrics(server)
    after = Metrics(server)
    hits = after.sum("feedline_cached_rows_total") - before.sum("feedline_cached_rows_total")
    rows = after.sum("feedline_rows_total") - before.sum("feedline_rows_total")
    assert 0.25 < hits / rows < 0.35


def test_jobs_and_ranks_share_one_cache(measured, load, photos, uncached) -> None:
    server = measured("--workers", "1", "--cache", "64M")
    ranks = [load(photos.pattern, sidecar=server.socket, seed=3, rank=rank, world_size=2, slots=4) for rank in range(2)]
    for loader in ranks:
        pixels(loader)
    read = Metrics(server).sum("feedline_read_bytes_total")
    # Each rank has samples of the other's in its second epoch, and another job has them all in its first.
    halves = [pixels(loader) for loader in ranks]
    assert same(halves[0] | halves[1], uncached["global"][1])
    job = load(photos.pattern, sidecar=server.socket, seed=3)
    assert same(pixels(job), uncached["global"][0])
    assert Metrics(server).sum("feedline_read_bytes_total") - read < 0.05 * read


def test_it_outlives_a_job_and_not_a_change_of_its_files(measured, load, tmp_path) -> None:
    bodies = [datasets.photo(seed, 80, 80) for seed in range(40)]
    data = write_photos(tmp_path, bodies, 2)
    server = measured("--workers", "1", "--cache", "16M")
    first = load(data.pattern, sidecar=server.socket)
    expected = pixels(first)
    first.close()
    assert within(10, lambda: Metrics(server).sum("feedline_streams") == 0)
    again = load(data.pattern, sidecar=server.socket)
    assert same(pixels(again), expected)
    assert Metrics(server).sum("feedline_read_bytes_total") == 0
    held = Metrics(server).sum("feedline_cached_bytes")
    # Other photos under the same names: the running stream ends, and nobody gets what was kept.
    other = write_photos(tmp_path / "other", [datasets.photo(seed + 1000, 80, 80) for seed in range(40)], 2)
    for old, new in zip(data.shards, other.shards, strict=True):
        os.replace(new, old)
    with suppress(feedline.LoaderError):
        for _ in range(2):
            pixels(again)
    changed = pixels(load(data.pattern, sidecar=server.socket))
    assert changed.keys() == expected.keys()
    assert not any(numpy.array_equal(changed[key], expected[key]) for key in changed)
    assert same(changed, pixels(load(data.pattern)))
    assert Metrics(server).sum("feedline_cached_bytes") < 1.5 * held, "the old ones are gone"


def test_compressed_shards_are_not_unpacked_again(measured, load, photos, tmp_path) -> None:
    packed = []
    for shard in photos.shards:
        packed.append(tmp_path / shard.name)
        packed[-1].write_bytes(gzip.compress(shard.read_bytes(), 1))
    pattern = f"{tmp_path}/part-{{000000..000003}}.tar"
    server = measured("--workers", "1", "--cache", "64M")
    loader = load(pattern, sidecar=server.socket, order="block", shuffle=None, seed=3, slots=4)
    plain = load(photos.pattern, order="block", block_shards=2, shuffle=None, seed=3)
    assert same(pixels(loader), pixels(plain))
    pixels(loader)
    read = Metrics(server).sum("feedline_read_bytes_total")
    assert same(pixels(loader), (pixels(plain), pixels(plain))[1])
    assert Metrics(server).sum("feedline_read_bytes_total") == read


def test_a_private_sidecar_has_a_cache_too(script, photos) -> None:
    code = """
from feedline import sidecar
loader = load(sys.argv[1], cache="32M", memory="256M")
first = {key: row for batch in loader for key, row in zip(batch.sample_keys, batch[0].copy())}
command = open(f"/proc/{sidecar._private.process.pid}/cmdline").read().split("\\0")
say(len(first), command[command.index("--cache") + 1], command[command.index("--memory") + 1])
"""
    [[count, cache, memory]], _errors = script(code, photos.pattern).finish()
    assert (count, cache, memory) == (200, "32M", "256M")


# One of everything.

RANK = """
loader = load(sys.argv[1], seed=3, name="shared")
keys = [[key for batch in loader for key in batch.sample_keys] for epoch in range(2)]
say(keys)
sys.stdin.readline()
"""


def test_four_ranks_read_every_byte_once(measured, script, photos, tmp_path) -> None:
    """Two epochs on four processes, past the page cache: the bytes of two epochs of samples, not of eight."""
    server = measured("--workers", "2", "--reader", "uring-direct", "--cache-dir", str(tmp_path / "indexes"))
    environment = [{"RANK": str(rank), "WORLD_SIZE": "4", "FEEDLINE_SOCKET": server.socket} for rank in range(4)]
    ranks = [script(RANK, photos.pattern, env=more, stdin=True) for more in environment]
    keys = [rank.hear()[0] for rank in ranks]
    for epoch in range(2):
        assert sorted(key for rank in keys for key in rank[epoch]) == photos.keys
    metrics = Metrics(server)
    samples = sum(map(len, photos.photos))
    # Read ahead for the next epoch: no more than the slots hold.
    ahead = samples * 4 * 8 * 8 / len(photos.keys)
    assert 2 * samples <= metrics.sum("feedline_read_bytes_total") <= 1.05 * (2 * samples + ahead)
    assert metrics.sum("feedline_workers") == 2
    assert len(list((tmp_path / "indexes").rglob("*.*"))) <= len(photos.shards), "one index a shard"
    for rank in ranks:
        rank.process.stdin.write(b"\n")
        rank.process.stdin.flush()
        rank.finish()


def test_unrelated_jobs_over_one_path(serve, load, photos) -> None:
    server = serve("--workers", "2")
    alone = pixels(load(photos.pattern, sidecar=server.socket, seed=1)), pixels(load(photos.pattern, sidecar=server.socket, seed=2))
    jobs = [load(photos.pattern, sidecar=server.socket, seed=seed, batch_size=size) for seed, size in ((1, 8), (2, 5))]
    found: list[Any] = [None, None]

    def take(number: int) -> None:
        found[number] = pixels(jobs[number])

    threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert same(found[0], alone[0])
    assert same(found[1], alone[1])


def test_who_holds_its_batches_holds_up_nobody(serve, load, photos) -> None:
    server = serve("--workers", "1")
    slow = iter(load(photos.pattern, sidecar=server.socket, seed=1))
    held = [next(slow) for _ in range(7)]
    for seed in range(2, 5):
        assert len(pixels(load(photos.pattern, sidecar=server.socket, seed=seed))) == 200
    assert len(held) + sum(1 for _ in slow) == 25


def test_large_photographs_leave_small_ones_their_share(measured, load, photos, tmp_path) -> None:
    """Shares of the cores are equal, not numbers of rows: of rows that take fifty times as long there are far fewer."""
    bodies = [datasets.photo(seed, 3000, 2400, quality=90) for seed in range(2)]
    giants = write_photos(tmp_path, bodies * 30, 1)
    server = measured("--workers", "1")
    whole = {"image": feedline.Image(["jpg"], feedline.Resize((64, 64))), "label": feedline.Int("cls")}
    heavy = load(giants.pattern, sidecar=server.socket, fields=whole, batch_size=4, name="heavy")
    light = load(photos.pattern, sidecar=server.socket, batch_size=4, name="light")
    ending = threading.Event()

    def drain() -> None:
        while not ending.is_set():
            for _batch in heavy:
                if ending.is_set():
                    return

    drained = threading.Thread(target=drain)
    heavy.peek()
    drained.start()
    try:
        before = Metrics(server)
        for _ in range(3):
            assert len(pixels(light)) == 200
        after = Metrics(server)
    finally:
        ending.set()
        drained.join(timeout=60)
    grown = {
        job: after.sum("feedline_rows_total", f'job="{job}"') - before.sum("feedline_rows_total", f'job="{job}"')
        for job in ("heavy", "light")
    }
    assert grown["light"] >= 500
    assert grown["heavy"] < grown["light"] / 3, grown


def test_a_job_of_higher_priority_gets_more(measured, load, tmp_path) -> None:
    """Of photos so large that both jobs always wait."""
    server = measured("--workers", "1")
    giants = write_photos(tmp_path, [datasets.photo(0, 3000, 2400, quality=90)] * 30, 1)
    whole = {"image": feedline.Image(["jpg"], feedline.Resize((64, 64))), "label": feedline.Int("cls")}
    options = {"sidecar": server.socket, "fields": whole, "batch_size": 2, "slots": 4}
    jobs = {
        name: load(giants.pattern, name=name, priority=priority, seed=1, **options)
        for name, priority in (("first", 4.0), ("other", 1))
    }
    for loader in jobs.values():
        loader.peek()
    ending = threading.Event()

    def drain() -> None:
        while not ending.is_set():
            for _batch in jobs["other"]:
                if ending.is_set():
                    return

    drained = threading.Thread(target=drain)
    drained.start()
    try:
        before = Metrics(server)
        for _ in range(3):
            assert len(pixels(jobs["first"])) == 30
        after = Metrics(server)
    finally:
        ending.set()
        drained.join(timeout=60)
    grown = {
        job: after.sum("feedline_rows_total", f'job="{job}"') - before.sum("feedline_rows_total", f'job="{job}"')
        for job in jobs
    }
    # Four times as much, less what the first leaves to the other while its client is busy or its epochs change.
    assert 0 < 1.5 * grown["other"] < grown["first"], grown
    with pytest.raises(ValueError, match="priority must be 0.01 to 100"):
        load(priority=0)
