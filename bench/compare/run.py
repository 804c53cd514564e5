"""Compares Feedline with torch's DataLoader on the same shards: images/s, processor seconds, time to take a batch.

Question: what does it cost to deliver what a recipe makes of photographs (random-resized crops of 224 pixels, where none
is named), in batches of 256, shuffled, from tar shards that are in the page cache, to a trainer that does nothing else?
Left out: storage, GPU copies, start-up (quoted apart).

Every figure is the difference between a run of 3 N and a run of N images, so that start-up cancels out. Each run is a
fresh process tree, pinned to one core by default, whose processor time is counted whole, sidecar included. The
contenders take turns; the table shows the median of the pairs and their spread.

    bench/compare/run.py [--photos FOLDER] [--recipe train] [--images N] [--pairs 5] [--json] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import process_tree
import recipes
import rivals
import shards

HERE = Path(__file__).parent

CONTENDERS = {
    "feedline": ["contender_feedline.py"],
    "feedline, scaled": ["contender_feedline.py", "--decode", "scaled"],
    "feedline, optimised": ["contender_feedline.py"],
    "feedline, optimised, scaled": ["contender_feedline.py", "--decode", "scaled"],
    "DataLoader, torchvision": ["contender_torch.py", "--decode", "torchvision"],
    "DataLoader, PIL": ["contender_torch.py", "--decode", "pil"],
    "DALI": ["contender_dali.py"],
    "DALI, no antialias": ["contender_dali.py", "--no-antialias"],
    "TurboLoader": ["contender_turboloader.py"],
}

#: Those that read the shards as `feedline optimize` rewrites them.
OPTIMISED = ("feedline, optimised", "feedline, optimised, scaled")

#: Those that come with what the tests need anyway; the others are installed when they are asked for.
USUAL = ("feedline", "DataLoader, torchvision", "DataLoader, PIL")


@dataclass
class Pair:
    """A run of N and a run of 3 N images, as differences."""

    images_per_s: float
    cpu_s_per_1000: float


@dataclass
class Result:
    """Everything measured of one contender."""

    name: str
    pairs: list[Pair] = field(default_factory=list)
    first_batch_s: list[float] = field(default_factory=list)
    take_us: list[float] = field(default_factory=list)
    take_first_us: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Medians and spreads, for the table and for JSON."""
        return {
            "name": self.name,
            "images_per_s": spread([pair.images_per_s for pair in self.pairs]),
            "cpu_s_per_1000_images": spread([pair.cpu_s_per_1000 for pair in self.pairs]),
            "first_batch_s": spread(self.first_batch_s),
            "take_us": percentiles(self.take_us),
            "take_first_us": percentiles(self.take_first_us),
        }


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentiles(values: list[float]) -> dict[str, float] | None:
    """Middle, tail and count, of what was measured."""
    if not values:
        return None
    ordered = sorted(values)
    tail = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
    return {"p50": ordered[len(ordered) // 2], "p99": tail, "count": len(ordered)}


class Bench:
    """The runs of one comparison."""

    def __init__(self, options: argparse.Namespace, pattern: str) -> None:
        self.options = options
        self.pattern = pattern
        # A thread pool per process is of no use on one core, and OpenMP would spin in it.
        self.environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.environment.pop("FEEDLINE_SOCKET", None)
        self.decode_ms: list[float] = []

    def contend(self, name: str, *arguments: str, cores: set[int] | None = None) -> tuple[dict[str, Any], float]:
        """One run: what the contender printed, and the processor seconds of its tree."""
        script, *more = CONTENDERS[name]
        pattern = shards.optimised(self.pattern) if name in OPTIMISED else self.pattern
        command = [*more, "--recipe", self.options.recipe, "--shards", pattern]
        command += ["--batch-size", str(self.options.batch_size)]
        command += ["--workers", str(len(self.options.cores)), *arguments]
        return self.run(name, script, command, cores or self.options.cores)

    def run(self, name: str, script: str, arguments: list[str], cores: set[int]) -> tuple[dict[str, Any], float]:
        """Runs a script on `cores`: what it printed, and the processor seconds of its tree."""
        command = [rivals.python(script), str(HERE / script), *arguments]
        outcome = process_tree.run(command, cores, self.environment)
        if outcome.status != 0 or outcome.stragglers:
            why = f"{outcome.stragglers} processes did not end" if outcome.status == 0 else f"status {outcome.status}"
            raise SystemExit(f"error: {name}: {why}\n{' '.join(command)}\n{outcome.stderr[-4000:]}")
        return json.loads(outcome.stdout.splitlines()[-1]), outcome.cpu_s

    def pair(self, result: Result) -> None:
        """A run of N and one of 3 N images."""
        images = self.options.images
        short, short_cpu = self.contend(result.name, "--images", str(images))
        long, long_cpu = self.contend(result.name, "--images", str(3 * images))
        more = long["images"] - short["images"]
        result.pairs.append(Pair(more / (long["wall_s"] - short["wall_s"]), 1000 * (long_cpu - short_cpu) / more))
        result.first_batch_s += [short["first_batch_s"], long["first_batch_s"]]

    def takes(self, result: Result) -> None:
        """How long a batch takes that is ready. On all cores: a trainer does not share its own with a decoder."""
        count = str(self.options.takes)
        measured, _ = self.contend(result.name, "--images", "0", "--takes", count, cores=os.sched_getaffinity(0))
        result.take_us = measured["takes"]["us"]
        result.take_first_us = measured["takes"]["first_us"]

    def gauge(self) -> None:
        """How fast the machine is now: the time of one plain decode."""
        measured, _ = self.run("gauge", "gauge.py", ["--shards", self.pattern], self.options.cores)
        self.decode_ms.append(measured["decode_ms"])


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    packages = ("feedline", "torch", "torchvision", "pillow", "numpy")
    versions = rivals.versions()
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "missing"
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "versions": versions,
    }


def table(report: dict[str, Any]) -> str:
    """The report in words."""
    about, rows = report["machine"], [["", "images/s", "CPU-s/1000 images", "first batch s", "take ready batch µs", "after a pause"]]
    for result in report["results"]:
        take, take_first = result["take_us"], result["take_first_us"]
        rows.append([
            result["name"],
            words(result["images_per_s"], "{:.0f}"),
            words(result["cpu_s_per_1000_images"], "{:.2f}"),
            words(result["first_batch_s"], "{:.1f}"),
            f"p50 {take['p50']:.0f}, p99 {take['p99']:.0f} (of {take['count']})" if take else "not measured",
            f"p50 {take_first['p50']:.0f}" if take_first else "",
        ])  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return "\n".join([
        f"recipe {report['recipe']}: {report['photos']}, {report['megabytes']:.0f} MB of shards in the page cache, batches of {report['batch_size']}",
        f"{about['cpu']}, {about['cores']} cores, runs pinned to {report['cores']}; load before {about['load_before']:.1f}",
        f"Linux {about['kernel']}, Python {about['python']}, {versions}",
        f"one plain decode takes {words(report['decode_ms'], '{:.2f}')} ms: full size, torchvision",
        f"difference of {3 * report['images']} and {report['images']} images; median (least-most) of {report['pairs']}",
        "",
        *lines,
    ])  # fmt: skip


def words(values: dict[str, float], form: str) -> str:
    """Median and spread as text."""
    return f"{form} ({form}-{form})".format(values["median"], values["min"], values["max"])


def parse() -> argparse.Namespace:
    """The command line, with what --quick changes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    photos = os.environ.get("FEEDLINE_PHOTOS")
    small = Path(photos) / "small" if photos and (Path(photos) / "small").is_dir() else photos and Path(photos)
    parser.add_argument("--photos", type=Path, default=small, help="folder of JPEG files (default: FEEDLINE_PHOTOS/small)")
    parser.add_argument("--reencode", action="store_true", help="recompress them first: quality 90, 4:2:0")
    parser.add_argument("--recipe", choices=recipes.VIEWS, default="train", help="what a sample becomes (%(default)s)")
    parser.add_argument("--images", type=int, default=2048, help="N (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--takes", type=int, default=40, help="batches of the take measurement, 0 for none")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--cores", type=lambda text: {int(core) for core in text.split(",")}, help="default: the last one")
    names = {group: ",".join(name.replace(", ", "+") for name in group) for group in (USUAL, tuple(CONTENDERS))}
    parser.add_argument("--contenders", default=names[USUAL], help=f"of {names[tuple(CONTENDERS)]} (%(default)s)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="see that everything runs; the figures mean nothing")
    options = parser.parse_args()
    options.cores = options.cores or {max(os.sched_getaffinity(0))}
    options.contenders = [name.replace("+", ", ") for name in options.contenders.split(",")]
    if unknown := [name for name in options.contenders if name not in CONTENDERS]:
        parser.error(f"no contender {unknown[0]!r}")
    if options.quick:
        options.images, options.pairs, options.takes, options.batch_size = 64, 1, 5, 32
    return options


def main() -> None:
    """Measures and reports."""
    options = parse()
    with tempfile.TemporaryDirectory(prefix="feedline-compare-") as scratch:
        folder = Path(scratch)
        photos, source = shards.find_photos(options.photos, folder, 32 if options.quick else 256)
        # Both runs of a pair end in the middle of an epoch, with equal amounts fetched ahead.
        pattern = shards.pack(photos, 4 * options.images, options.reencode, folder)
        if set(options.contenders) & set(OPTIMISED):
            shards.optimise(pattern)
        megabytes = shards.warm(folder) / 1e6
        about = machine()
        process_tree.adopt_orphans()
        bench = Bench(options, pattern)
        results = [Result(name) for name in options.contenders]
        for number in range(options.pairs):
            bench.gauge()
            for result in results:
                print(f"pair {number + 1} of {options.pairs}: {result.name}", file=sys.stderr)
                bench.pair(result)
        for result in results if options.takes else ():
            print(f"taking ready batches: {result.name}", file=sys.stderr)
            bench.takes(result)
    report = {
        "recipe": options.recipe,
        "photos": source + (", re-encoded" if options.reencode else ""),
        "megabytes": megabytes,
        "batch_size": options.batch_size,
        "images": options.images,
        "pairs": options.pairs,
        "cores": sorted(options.cores),
        "machine": about,
        "decode_ms": spread(bench.decode_ms),
        "results": [result.summary() for result in results],
        "raw": {result.name: [vars(pair) for pair in result.pairs] for result in results},
    }
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
