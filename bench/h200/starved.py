"""Does what Feedline says of a starving GPU hold, and does a sidecar slow a trainer that does not need it?

`resnet50`, `resnet18`, `resnet18_one_thread`: epochs with all decode threads, or one. The GPU needs N / ceiling seconds for N
images, where the ceiling is the rate on batches that lie in pinned memory; the rest of the epoch it stood idle. Share of the
time, beside Feedline's own `gpu_starved_s`, and beside the loader wait.

`courtesy`: images/s of ResNet-50 on pinned batches, without and with a sidecar that decodes all that it can for another
process. Interleaved pairs.

See README.md in this folder.

    python bench/h200/starved.py --photos FOLDER --out raw.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import run
import torch
import torchvision
from run import OUTPUT, SIZE, Batches, ahead, feedline_loader, packing

#: Takes batches for ever, in a process of its own.
JOB = """
import sys
import feedline
fields = {"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(224), feedline.RandomHorizontalFlip()), "label": feedline.Int("cls")}
loader = feedline.Loader(sys.argv[1], batch_size=256, shuffle=True, seed=0, fields=fields)
rows = 0
while True:
    for batch in loader:
        rows += len(batch.sample_keys)
        print(rows, flush=True)
"""


def main() -> None:
    """Runs all parts and writes one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=16_384)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS), help="only these, with commas between")
    parser.add_argument("--pattern", help="shards that are packed already, for the one part that is named")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    if options.pattern is not None:
        options.out.write_text(json.dumps(PARTS[options.parts](options.pattern, options)))
        return
    result: dict[str, Any] = {"machine": run.machine()}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        photos, _ = packing.find_photos(options.photos, Path(scratch), 0)
        pattern = packing.pack(photos, options.samples, False, Path(scratch))
        result["data"] = {"photos": len(photos), "samples": options.samples, "bytes": packing.warm(Path(scratch))}
        for name in options.parts.split(","):
            # In a process of its own: all loaders of one share a sidecar, and its threads.
            part = Path(scratch, "part.json")
            command = [sys.executable, __file__, *sys.argv[1:], "--parts", name, "--pattern", pattern, "--out", str(part)]
            subprocess.run(command, check=True)
            result[name] = json.loads(part.read_text())
            print(name, json.dumps(result[name]), flush=True)
            options.out.write_text(json.dumps(result, indent=1))


class Trainer:
    """A model that is trained in bfloat16, and the host's lead over the device, two steps."""

    def __init__(self, name: str) -> None:
        model = getattr(torchvision.models, name)().cuda()
        self._model = model.to(torch.bfloat16, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.01, momentum=0.9, fused=True)
        self._loss = torch.nn.CrossEntropyLoss()
        self._lag: list[torch.cuda.Event] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One step."""
        self._optimizer.zero_grad(set_to_none=True)
        self._loss(self._model(images), labels).backward()
        self._optimizer.step()
        self._lag.append(torch.cuda.Event())
        self._lag[-1].record()
        if len(self._lag) > 2:
            self._lag.pop(0).synchronize()

    def rate(self, batches: Batches, seconds: float) -> float:
        """Images/s for that long, after a second of the same."""
        for length in (1.0, seconds):
            torch.cuda.synchronize()
            begun, count = time.perf_counter(), 0
            while time.perf_counter() - begun < length:
                images, labels = next(batches)
                self.step(images, labels)
                count += len(labels)
            torch.cuda.synchronize()
        return count / (time.perf_counter() - begun)


def pinned(batch_size: int) -> Batches:
    """Batches that lie in pinned memory, copied ahead."""
    kept = [(torch.randint(0, 256, (batch_size, 3, SIZE, SIZE), dtype=torch.uint8).contiguous(memory_format=torch.channels_last).pin_memory(),
             torch.randint(0, 1000, (batch_size,)).pin_memory()) for _ in range(6)]  # fmt: skip
    return ahead(itertools.cycle(kept))


def starved(pattern: str, model: str, batch_size: int, workers: int | None, options: argparse.Namespace) -> dict[str, Any]:
    """Shares of epochs in which the GPU stood idle, as the ceiling implies and as Feedline says."""
    trainer = Trainer(model)
    still = pinned(batch_size)
    trainer.rate(still, 2)
    ceiling = trainer.rate(still, options.seconds)
    loader = feedline_loader(pattern, batch_size, device="cuda", output=OUTPUT, workers=workers)
    rows = []
    for number in range(options.pairs + 1):
        iterator = iter(loader)
        connection = iterator._connection
        assert connection is not None, "it has just begun"
        # The first step and what was prefetched are left out.
        trainer.step(*next(iterator))
        torch.cuda.synchronize()
        connection.summary()
        begun, count = time.perf_counter(), 0
        for images, labels in iterator:
            trainer.step(images, labels)
            count += len(labels)
        torch.cuda.synchronize()
        wall = time.perf_counter() - begun
        said = connection.summary()
        if number:
            rows.append({
                "images_per_s": count / wall, "implied_share": 1 - count / ceiling / wall, "gpu_starved_share": said["gpu_starved_s"] / wall,
                "loader_wait_share": said["client"]["waited_s"] / wall, "by_cause": said["gpu_starved_by_cause"],
                "pending": said["gpu_starved_pending"], "verdict": said["verdict"]["words"],
            })  # fmt: skip
    loader.close()
    return {"ceiling": ceiling, "epochs": rows}


def courtesy(pattern: str, options: argparse.Namespace) -> dict[str, Any]:
    """Images/s of ResNet-50 on pinned batches, alone and beside a sidecar with all the work it can take."""
    trainer, still = Trainer("resnet50"), pinned(256)
    trainer.rate(still, 2)
    environment = {**os.environ, "FEEDLINE_TENSORS": "numpy", "CUDA_VISIBLE_DEVICES": ""}
    job = subprocess.Popen([sys.executable, "-c", JOB, pattern], stdout=subprocess.PIPE, env=environment, text=True)
    assert job.stdout is not None
    job.stdout.readline()
    os.set_blocking(job.stdout.fileno(), False)
    alone, beside, decoded = [], [], []
    rows = 0

    def progress() -> int:
        nonlocal rows
        lines = job.stdout.read().split() if job.stdout else []
        rows = int(lines[-1]) if lines else rows
        return rows

    try:
        for _ in range(options.pairs):
            job.send_signal(signal.SIGSTOP)
            # Until the ring is full.
            time.sleep(2)
            alone.append(trainer.rate(still, options.seconds))
            job.send_signal(signal.SIGCONT)
            time.sleep(1)
            before, begun = progress(), time.perf_counter()
            beside.append(trainer.rate(still, options.seconds))
            decoded.append((progress() - before) / (time.perf_counter() - begun))
    finally:
        job.kill()
        job.wait()
    slower = [1 - with_it / without for with_it, without in zip(beside, alone, strict=True)]
    return {"alone": alone, "beside": beside, "decoded_meanwhile": decoded, "slower": slower, "slower_median": statistics.median(slower)}


PARTS: dict[str, Callable[[str, argparse.Namespace], dict[str, Any]]] = {
    "resnet50": lambda pattern, options: starved(pattern, "resnet50", 256, None, options),
    "resnet18": lambda pattern, options: starved(pattern, "resnet18", 512, None, options),
    "resnet18_one_thread": lambda pattern, options: starved(pattern, "resnet18", 512, 1, options),
    "courtesy": courtesy,
}

if __name__ == "__main__":
    main()
