"""Does a trainer keep its core beside a sidecar that has all the work it can take?

Question: a trainer of one thread does the same work in every step (hashing a buffer that fits its core's cache). How much
longer does a step take while a sidecar on the same cores serves a job that takes batches as fast as they come? Unit:
milliseconds a step, and their ratio; below 1.10 is what Feedline promises. Left out: GPUs, memory bandwidth, and the
trainer's own loader.

Sidecars differ in their decode threads and in how far these step back (`feedline serve --nice`). For each, rounds without
and with load take turns, several times: the job is stopped (SIGSTOP) until the sidecar has filled its ring and is idle, and
let go on for the round with load. All processes are bound to the same few cores, 2 by default.

    python bench/trainer_core.py [--photos FOLDER] [--cores 2] [--steps N] [--pairs 5] [--json] [--quick]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "compare"))
import shards

#: What a step hashes: it stays in a core's own cache.
BUFFER = bytes(256 << 10)

#: A step takes about so long.
STEP_S = 0.02

#: What is promised of the default options.
RATIO_MAX = 1.10

#: Takes batches for ever, and says after each how many rows it has had.
JOB = """
import sys
import feedline
fields = {"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(224), feedline.RandomHorizontalFlip()), "label": feedline.Int("cls")}
loader = feedline.Loader(sys.argv[1], batch_size=64, shuffle=True, seed=0, fields=fields, sidecar=sys.argv[2])
rows = 0
while True:
    for batch in loader:
        rows += len(batch.sample_keys)
        sys.stdout.write(f"{rows}\\n")
        sys.stdout.flush()
"""


@dataclass
class Row:
    """What was measured beside one sidecar.

    Attributes:
        options: Options of the sidecar.
        workers: Its decode threads.
        alone_ms: Median step without load.
        loaded_ms: Median step with load.
        ratio: Median of the pairs' ratios of mean steps, which counts every delay.
        ratio_min: Least of them.
        ratio_max: Largest of them.
        p99_ratio: Median of the pairs' ratios of the 99th percentiles.
        images_per_s: What the job got meanwhile.
    """

    options: str
    workers: int
    alone_ms: float
    loaded_ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    p99_ratio: float
    images_per_s: float


def step(repeats: int) -> float:
    """One step of the trainer; how long it took, in seconds."""
    begun = time.perf_counter()
    for _ in range(repeats):
        hashlib.blake2b(BUFFER).digest()
    return time.perf_counter() - begun


def calibrate() -> int:
    """How much makes a step of `STEP_S` on an idle core."""
    step(20)
    return max(1, round(20 * STEP_S / min(step(20) for _ in range(5))))


def processor_ticks(pid: int) -> int:
    """Processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Load:
    """A sidecar and a job that takes all it gives."""

    def __init__(self, folder: Path, pattern: str, options: list[str]) -> None:
        socket = str(folder / "socket")
        serve = [sys.executable, "-m", "feedline", "serve", "--json", "--socket", socket, "--cache-dir", str(folder), *options]
        self.sidecar = subprocess.Popen(serve, stdout=subprocess.PIPE, start_new_session=True)
        assert self.sidecar.stdout is not None
        self.workers = int(json.loads(self.sidecar.stdout.readline())["workers"])
        environment = {**os.environ, "FEEDLINE_TENSORS": "numpy"}
        self.job = subprocess.Popen([sys.executable, "-c", JOB, pattern, socket], stdout=subprocess.PIPE, env=environment)
        assert self.job.stdout is not None
        os.set_blocking(self.job.stdout.fileno(), False)
        self.rows = 0
        self.read_rows()
        deadline = time.monotonic() + 60
        while self.read_rows() == 0:
            if time.monotonic() > deadline or self.job.poll() is not None:
                raise SystemExit("error: the job got no batch")
            time.sleep(0.05)

    def read_rows(self) -> int:
        """Rows that the job has had so far."""
        assert self.job.stdout is not None
        text = self.job.stdout.read() or b""
        complete = [line for line in text.split(b"\n")[:-1] if line]
        self.rows = max([self.rows, *(int(line) for line in complete)])
        return self.rows

    def pause(self) -> None:
        """Stops the job, and waits until the sidecar has nothing to do."""
        self.job.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 30
        before = -1
        while (now := processor_ticks(self.sidecar.pid)) != before:
            if time.monotonic() > deadline:
                raise SystemExit("error: the sidecar does not come to rest while its only job is stopped")
            before = now
            time.sleep(0.2)

    def resume(self) -> None:
        """Lets the job go on; returns once it has had a batch."""
        self.read_rows()
        before = self.rows
        self.job.send_signal(signal.SIGCONT)
        while self.read_rows() == before:
            time.sleep(0.01)

    def end(self) -> None:
        """Ends both."""
        for process in (self.job, self.sidecar):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def loaded(pattern: str, options: list[str]) -> Iterator[Load]:
    """A load with a sidecar of these options."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        load = Load(Path(folder), pattern, options)
        try:
            yield load
        finally:
            load.end()


def percentile(times: list[float], share: float) -> float:
    """The time that this share of steps does not exceed."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def measure(pattern: str, options: list[str], repeats: int, steps: int, pairs: int) -> Row:
    """Rounds without and with load, taking turns."""
    alone, busy, ratios, tails, rates = [], [], [], [], []
    with loaded(pattern, options) as load:
        for _ in range(pairs):
            load.pause()
            without = [step(repeats) for _ in range(steps)]
            load.resume()
            rows, begun = load.read_rows(), time.perf_counter()
            under = [step(repeats) for _ in range(steps)]
            rates.append((load.read_rows() - rows) / (time.perf_counter() - begun))
            alone += without
            busy += under
            ratios.append(statistics.mean(under) / statistics.mean(without))
            tails.append(percentile(under, 0.99) / percentile(without, 0.99))
        return Row(
            " ".join(options) or "as by default",
            load.workers,
            1000 * statistics.median(alone),
            1000 * statistics.median(busy),
            statistics.median(ratios),
            min(ratios),
            max(ratios),
            statistics.median(tails),
            statistics.median(rates),
        )


def main() -> int:
    """Measures and prints; 1 where the default options do not keep the promise (never with --quick)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=os.environ.get("FEEDLINE_PHOTOS"), help="folder of JPEG files")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--cores", type=int, default=2, help="cores that all processes share")
    parser.add_argument("--steps", type=int, default=250, help="steps of a round")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="does it work at all? The figures mean little")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.samples, chosen.steps, chosen.pairs = 64, 10, 1
    cores = sorted(os.sched_getaffinity(0))[: chosen.cores]
    os.sched_setaffinity(0, cores)
    every = ["--workers", str(len(cores))]
    rows = []
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as name:
        folder = Path(name)
        photos, source = shards.find_photos(chosen.photos and Path(chosen.photos), folder, chosen.samples)
        pattern = shards.pack(photos, chosen.samples, False, folder)
        repeats = calibrate()
        for options in ([], ["--nice", "0"], every, [*every, "--nice", "0"]):
            rows.append(measure(pattern, options, repeats, chosen.steps, chosen.pairs))
    if chosen.json:
        print(json.dumps({"cores": len(cores), "machine": platform.platform(), "photos": source, "rows": [asdict(row) for row in rows]}))
    else:
        print(f"{len(cores)} cores, {source}, {chosen.pairs} pairs of rounds of {chosen.steps} steps; {platform.platform()}")
        print(f"{'sidecar':<24} {'workers':>7} {'alone ms':>9} {'loaded ms':>9} {'mean ratio':>20} {'p99 ratio':>9} {'images/s':>9}")
        for row in rows:
            spread = f"{row.ratio:.3f} ({row.ratio_min:.3f}-{row.ratio_max:.3f})"
            print(
                f"{row.options:<24} {row.workers:>7} {row.alone_ms:>9.2f} {row.loaded_ms:>9.2f} {spread:>20} "
                f"{row.p99_ratio:>9.2f} {row.images_per_s:>9.0f}"
            )
    return int(not chosen.quick and rows[0].ratio > RATIO_MAX)


if __name__ == "__main__":
    sys.exit(main())
