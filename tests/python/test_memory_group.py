"""A sidecar in a real control group with little memory: it refuses what does not fit, and outlives a client that takes
pages of its ring away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import feedline


class MemoryGroup:
    """A control group of the test's own, below the group that this process is in."""

    def __init__(self) -> None:
        memberships = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounted = Path("/sys/fs/cgroup/memory")
        own = next((path for _, controllers, path in memberships if controllers == "memory"), None)
        self.limit_file = "memory.limit_in_bytes"
        if own is None:
            own = next((path for number, _, path in memberships if number == "0"), "/")
            mounted, self.limit_file = Path("/sys/fs/cgroup"), "memory.max"
        # Inside a container the path may be the host's.
        parents = [mounted / own.lstrip("/"), mounted]
        self.folder = next(folder for folder in parents if folder.is_dir()) / f"feedline-test-{os.getpid()}"

    def __enter__(self) -> MemoryGroup:
        try:
            self.folder.mkdir()
        except OSError as error:
            pytest.skip(f"no control group can be made: {error}")
        if not (self.folder / self.limit_file).exists():
            self.folder.rmdir()
            pytest.skip(f"{self.folder.parent} does not hand on its memory controller")
        return self

    def __exit__(self, *_exception: object) -> None:
        self.folder.rmdir()

    def add(self, pid: int) -> None:
        """Moves a process in; what it allocates from now on counts."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        """Sets the limit, in bytes."""
        (self.folder / self.limit_file).write_text(str(size))

    def used(self) -> int:
        """Bytes that count now."""
        name = "memory.current" if self.limit_file == "memory.max" else "memory.usage_in_bytes"
        return int((self.folder / name).read_text())


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with MemoryGroup() as made:
        yield made


def test_a_ring_that_the_group_cannot_hold_is_refused(group, serve, load) -> None:
    server = serve("--workers", "1")
    group.add(server.process.pid)
    group.limit(64 << 20)
    # 8 slots of 8 rows of 3 x 1024 x 1024 bytes are 192 MiB.
    fields = {"image": feedline.Image(["jpg"], feedline.Resize((1024, 1024))), "label": feedline.Int("cls")}
    with pytest.raises(feedline.ResourceError, match=r"the control group .* allows 64.0 MiB .* lower the number of slots"):
        load(sidecar=server.socket, fields=fields).peek()
    # It lives, and serves what fits.
    assert sum(len(batch.sample_keys) for batch in load(sidecar=server.socket)) == 100
    server.kill()


LARGE = {"image": feedline.Image(["jpg"], feedline.Resize((512, 512))), "label": feedline.Int("cls")}

PUNCH = """
import ctypes
MADV_REMOVE = 9
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]

def punch():
    holes = 0
    with open("/proc/self/maps") as maps:
        rings = [line.split()[0] for line in maps if "/memfd:feedline-payload" in line]
    for ring in rings:
        start, end = (int(part, 16) for part in ring.split("-"))
        assert libc.madvise(start, end - start, MADV_REMOVE) == 0, os.strerror(ctypes.get_errno())
        holes += end - start
    return holes

FIELDS["image"] = feedline.Image(["jpg"], feedline.Resize((512, 512)))
loader = load(sys.argv[1], sidecar=sys.argv[2])
"""

PUNCH_ALWAYS = """
rows = 0
for epoch in range(3):
    for batch in loader:
        rows += len(batch.sample_keys)
        assert punch() > 0
say(rows)
"""

PUNCH_ONCE = """
batches = iter(loader)
next(batches)
say(punch())
sys.stdin.readline()
say(8 + sum(len(batch.sample_keys) for batch in batches))
"""


def test_a_client_that_punches_holes_hurts_only_itself(group, serve, script, dataset, load) -> None:
    server = serve("--workers", "2")
    group.add(server.process.pid)
    hostile = script(PUNCH + PUNCH_ALWAYS, dataset.pattern, server.socket)
    expected = None
    for _ in range(3):
        batches = [(batch.sample_keys, batch[0].numpy().copy()) for batch in load(sidecar=server.socket)]
        assert len(batches) == 13
        assert all(images.any(axis=(1, 2, 3)).all() for _, images in batches), "nobody punched holes into this ring"
        expected = expected or batches[0][0]
        assert batches[0][0] == expected
    assert hostile.finish()[0] == [[300]]
    assert server.process.poll() is None, "the sidecar lives"


def test_the_room_of_holes_is_not_given_to_others(group, serve, script, dataset, load) -> None:
    """Else the sidecar would be killed for want of memory when it stores into the ring with the holes again."""
    server = serve("--workers", "2")
    group.add(server.process.pid)
    hostile = script(PUNCH + PUNCH_ONCE, dataset.pattern, server.socket, stdin=True)
    before = group.used()
    (holes,) = hostile.hear()
    assert holes > 32 << 20
    # Nearly all that is free are the holes.
    group.limit(max(before, group.used() + holes) + (8 << 20))
    with pytest.raises(feedline.ResourceError, match="holes that clients made in other rings"):
        load(sidecar=server.socket, fields=LARGE).peek()
    hostile.process.stdin.write(b"\n")
    hostile.process.stdin.flush()
    assert hostile.finish()[0] == [[100]]
    assert server.process.poll() is None, "the sidecar lives"
    assert sum(len(batch.sample_keys) for batch in load(sidecar=server.socket)) == 100
