"""Does a service that lives for long, among trainers that die all the time, keep its memory, descriptors and threads?

Units: MiB of private memory (RssAnon), of mapped rings, descriptors, threads, sampled every few seconds. One service; beside it
trainers that start, train for a moment and end in some way drawn at random (SIGKILL, SIGSTOP and SIGKILL, SIGINT, exception,
exit without a word), two at a time; and one that takes epoch after epoch and compares each epoch's trace with the first
run's. At the end the figures of the last tenth are set beside those of the first tenth after a warm-up, while nobody else is
connected. Left out: speed, and the network.

    python bench/soak.py --minutes 60 --out bench/runs/DATE-MACHINE-soak

It ends with status 1 when an epoch differs or something has grown.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

#: One life of a trainer: argv[1] shards, argv[2] seconds, argv[3] how it ends.
TRAINER = """
import os, sys, time
import feedline
loader = feedline.Loader(sys.argv[1], batch_size=16, shuffle=True, slots=6, seed=int(sys.argv[2]))
end = time.monotonic() + float(sys.argv[3])
held = []
while time.monotonic() < end:
    for batch in loader:
        held = [*held[-2:], batch["image"]]
        time.sleep(0.01)
        if time.monotonic() > end: break
if sys.argv[4] == "exception": raise RuntimeError("mine")
if sys.argv[4] == "hard exit": os._exit(1)
"""

ENDS = ("kill", "stop", "interrupt", "exception", "exit", "hard exit")

#: What the figures may grow by: the allocator keeps some of what it had in a busy moment.
ALLOWED = {"private_mib": 24.0, "rings_mib": 0.0, "descriptors": 0.0, "threads": 0.0}


def figures(pid: int) -> dict[str, float]:
    """Memory, descriptors and threads of process `pid`."""
    status = Path(f"/proc/{pid}/status").read_text()
    rings = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "/memfd:" in line:
            start, end = line.split()[0].split("-")
            rings += int(end, 16) - int(start, 16)
    return {
        "private_mib": int(status.partition("RssAnon:")[2].split()[0]) / 1024,
        "rings_mib": rings / (1 << 20),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


class Trainers(threading.Thread):
    """Starts trainers and sees to their ends, one after the other."""

    def __init__(self, shards: str, environ: dict[str, str], seed: int, until: float) -> None:
        super().__init__()
        self._shards, self._environ, self._until = shards, environ, until
        self._draw = random.Random(seed)
        self.ends: dict[str, int] = dict.fromkeys(ENDS, 0)

    def run(self) -> None:
        while time.monotonic() < self._until:
            how = self._draw.choice(ENDS)
            seconds = self._draw.uniform(0.0, 4.0)
            words = [sys.executable, "-c", TRAINER, self._shards, str(self._draw.randrange(1000)), str(seconds), how]
            one = subprocess.Popen(words, env=self._environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            if how in ("kill", "stop", "interrupt"):
                # Anywhere in its life, from its first imports on.
                time.sleep(self._draw.uniform(0.2, 5.0))
                number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}[how]
                one.send_signal(number)
                if how == "stop":
                    time.sleep(self._draw.uniform(0.5, 5.0))
                    one.kill()
            try:
                one.wait(timeout=60)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
            self.ends[how] += 1


def epoch_trace(shards: str, socket: str) -> str:
    """The trace of one epoch, of a loader of its own."""
    import feedline

    loader = feedline.Loader(shards, batch_size=16, shuffle=True, seed=1, sidecar=socket)
    for _batch in loader:
        time.sleep(0.005)
    loader.close()
    return loader.trace_hash


def make_shards(folder: Path) -> str:
    """Some shards of generated photos."""
    import io
    import tarfile

    import numpy
    from PIL import Image

    draw = numpy.random.default_rng(1)
    for shard in range(4):
        with tarfile.open(folder / f"part-{shard}.tar", "w") as tar:
            for number in range(100):
                pixels = draw.integers(0, 256, (12, 16, 3), dtype=numpy.uint8)
                photo = io.BytesIO()
                Image.fromarray(pixels).resize((400, 300)).save(photo, "JPEG", quality=90)
                for name, value in ((f"{shard}{number:04}.jpg", photo.getvalue()), (f"{shard}{number:04}.cls", b"3")):
                    info = tarfile.TarInfo(name)
                    info.size = len(value)
                    tar.addfile(info, io.BytesIO(value))
    return str(folder / "part-{0..3}.tar")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--quick", action="store_true", help="a third of a minute")
    given = arguments.parse_args()
    minutes = 0.33 if given.quick else given.minutes
    with tempfile.TemporaryDirectory(prefix="feedline-soak-") as name:
        folder = Path(name)
        shards, socket = make_shards(folder), str(folder / "soak.sock")
        command = [sys.executable, "-m", "feedline", "serve", "--json", "--workers", "1", "--socket", socket]
        service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            assert service.stdout is not None and json.loads(service.stdout.readline())
            return soak(given, minutes, shards, socket, service.pid)
        finally:
            service.terminate()
            service.wait(timeout=60)


def quiet(pid: int) -> dict[str, float]:
    """The figures once nobody is connected and the rings are gone, or after a while."""
    deadline = time.monotonic() + 15
    while figures(pid)["rings_mib"] > 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    return figures(pid)


def soak(given: argparse.Namespace, minutes: float, shards: str, socket: str, pid: int) -> int:
    """Runs and reports; 0 where nothing has grown."""
    started = time.monotonic()
    until = started + 60 * minutes
    expected = epoch_trace(shards, socket)
    warm_until = min(until, time.monotonic() + max(5.0, 3 * minutes))
    # A warm-up has all kinds of life and death too.
    environ = {**os.environ, "FEEDLINE_SOCKET": socket, "FEEDLINE_TENSORS": "numpy"}
    phases = [(warm_until, given.seed + 1000), (until, given.seed)]
    samples: list[dict[str, float]] = []
    ends = dict.fromkeys(ENDS, 0)
    epochs = different = 0
    rests = []
    for phase_until, seed in phases:
        crowd = [Trainers(shards, environ, 2 * seed + number, phase_until) for number in range(2)]
        for one in crowd:
            one.start()
        while time.monotonic() < phase_until:
            different += epoch_trace(shards, socket) != expected
            epochs += 1
            samples.append({"second": round(time.monotonic() - started, 1), **figures(pid)})
        for one in crowd:
            one.join()
            for how, count in one.ends.items():
                ends[how] += count
        rests.append(quiet(pid))
    grown = {name: rests[1][name] - rests[0][name] for name in rests[0]}
    bad = [name for name, most in ALLOWED.items() if grown[name] > most]
    median = {
        name: [statistics.median(one[name] for one in part) for part in (samples[: len(samples) // 10 or 1], samples[-(len(samples) // 10) or -1 :])]
        for name in rests[0]
    }
    report = "\n".join(
        [
            "# A service among trainers that die",
            "",
            f"{minutes:.1f} minutes; {sum(ends.values())} trainers ended: {', '.join(f'{count} by {how}' for how, count in ends.items())}.",
            f"A bystander took {epochs} epochs; {different} had another trace than the first.",
            "",
            f"- Machine: {os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}.",
            f"- Command: `python bench/soak.py {' '.join(sys.argv[1:])}`",
            "",
            "| | at rest after the warm-up | at rest at the end | grown | allowed | median, first tenth | median, last tenth |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {name} | {rests[0][name]:.1f} | {rests[1][name]:.1f} | {grown[name]:+.1f} | {ALLOWED[name]:.0f} | "
                f"{median[name][0]:.1f} | {median[name][1]:.1f} |"
                for name in rests[0]
            ),
            "",
            "Nothing grows." if not bad and not different else f"WRONG: {', '.join(bad) or 'traces'}.",
            "",
        ]
    )
    print(report)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "README.md").write_text(report)
        with (given.out / "raw.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, samples[0])
            writer.writeheader()
            writer.writerows(samples)
    return bool(bad or different)


if __name__ == "__main__":
    sys.exit(main())
