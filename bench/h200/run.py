"""What a GPU gets: copies from the ring, the trainer's own CPU, and training steps beside DataLoader and beside batches that
are in memory already. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "compare"))

import shards as packing  # noqa: E402
from contender_torch import TarSamples  # noqa: E402
from torch.utils.data import DataLoader, RandomSampler  # noqa: E402

import feedline  # noqa: E402

SIZE = 224
NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OUTPUT = feedline.Output("bfloat16", channels_last=True, normalize=NORMALIZE)
FIELDS = {
    "image": feedline.Image(["jpg"], feedline.RandomResizedCrop(SIZE), feedline.RandomHorizontalFlip()),
    "label": feedline.Int("cls"),
}

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def main() -> None:
    """Runs all parts and writes one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEG files, repeated to --samples")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds of each contender")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one round")
    parser.add_argument("--workers", type=int, default=16, help="workers of DataLoader")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", help="only these, with commas between")
    parser.add_argument("--optimise", action="store_true", help="also from shards as `feedline optimize` rewrites them")
    parser.add_argument("--models", default="resnet50:256,resnet18:512")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    result: dict[str, Any] = {"machine": machine(), "arguments": vars(options) | {"photos": "", "out": ""}}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        photos, _ = packing.find_photos(options.photos, Path(scratch), 0)
        pattern = packing.pack(photos, options.samples, False, Path(scratch))
        result["data"] = {"photos": len(photos), "samples": options.samples, "bytes": packing.warm(Path(scratch))}
        wanted = options.parts.split(",") if options.parts else None
        parts: list[tuple[str, Callable[[], Any]]] = [
            ("copies", lambda: copies(pattern)),
            ("trainer_cpu", lambda: trainer_cpu(pattern)),
        ]
        patterns = {"feedline": pattern}
        if options.optimise:
            packing.optimise(pattern)
            packing.warm(Path(scratch))
            patterns["feedline_optimised"] = packing.optimised(pattern)
        for model in options.models.split(","):
            name, _, batch = model.partition(":")
            parts.append((model, lambda name=name, batch=int(batch): training(patterns, name, batch, options)))  # type: ignore[misc]
        for part, measure in parts:
            if wanted is not None and part not in wanted:
                continue
            begun = time.monotonic()
            try:
                result[part] = measure()
            except Exception as error:
                result[part] = {"error": f"{type(error).__name__}: {error}"}
            print(part, f"{time.monotonic() - begun:.0f} s", json.dumps(result[part]), flush=True)
            options.out.write_text(json.dumps(result, indent=1))


def machine() -> dict[str, Any]:
    """Hardware and versions."""
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current", "--format=csv,noheader"], capture_output=True, text=True)
    return {
        "gpu": smi.stdout.strip(), "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "torchvision": torchvision.__version__, "feedline": feedline.__version__,
    }  # fmt: skip


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "count": len(values)}


def feedline_loader(pattern: str, batch_size: int, **options: Any) -> feedline.Loader:
    """Feedline's contender."""
    return feedline.Loader(pattern, batch_size, shuffle=True, fields=FIELDS, drop_last=True, slots=12, **options)


def copies(pattern: str) -> dict[str, Any]:
    """GB/s of copies of 77 MB from the ring and from torch's pinned memory, in turn."""
    # Page-locking waits for this.
    torch.cuda.init()
    batch = next(iter(feedline_loader(pattern, 512, pin_memory=True)))
    ring = batch["image"]
    pinned = torch.empty_like(ring, pin_memory=True).copy_(ring)
    target = torch.empty_like(ring, device="cuda")
    rates: dict[str, list[float]] = {"ring": [], "torch_pinned": []}
    for number in range(12):
        for name, source in (("ring", ring), ("torch_pinned", pinned)):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            for _ in range(20):
                target.copy_(source, non_blocking=True)
            ended.record()
            ended.synchronize()
            if number >= 2:
                rates[name].append(20 * ring.numel() / begun.elapsed_time(ended) / 1e6)
    assert torch.equal(target.cpu(), ring)
    return {"unit": "GB/s", "ring_is_pinned": ring.is_pinned(), **{name: spread(values) for name, values in rates.items()}}


def trainer_cpu(pattern: str) -> dict[str, Any]:
    """CPU milliseconds of the trainer's process for a batch of 512 that arrives normalised on the GPU, without a model."""
    loader = feedline_loader(pattern, 512, device="cuda", output=OUTPUT)
    rows: dict[str, list[float]] = {"thread_ms": [], "process_ms": [], "ready_next_ms": []}
    for number in range(4):
        iterator = iter(loader)
        next(iterator)
        thread, process, count = time.thread_time(), process_time(), 0
        for _ in iterator:
            count += 1
        if number:
            rows["thread_ms"].append(1000 * (time.thread_time() - thread) / count)
            rows["process_ms"].append(1000 * (process_time() - process) / count)
    iterator = iter(loader)
    for _ in range(12):
        next(iterator)
        # Long enough for batches to be ready, so that the call neither waits nor is woken.
        time.sleep(0.25)
        begun = time.perf_counter()
        next(iterator)
        rows["ready_next_ms"].append(1000 * (time.perf_counter() - begun))
    loader.close()
    return {name: spread(values) for name, values in rows.items()}


def process_time() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def training(patterns: dict[str, str], model_name: str, batch_size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Images/s of training steps fed by each contender, in interleaved rounds; Feedline from each of `patterns`."""
    model = getattr(torchvision.models, model_name)().cuda().to(torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    loss = torch.nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(images), labels).backward()
        optimizer.step()

    contenders: dict[str, Batches] = {}
    fed = {name: feedline_loader(pattern, batch_size, device="cuda", output=OUTPUT) for name, pattern in patterns.items()}
    live: dict[str, list[Any]] = {name: [] for name in fed}
    for name, loader in fed.items():
        contenders[name] = forever(loader, live[name])
        first = next(contenders[name])
    kept = [(torch.randint(0, 256, (batch_size, 3, SIZE, SIZE), dtype=torch.uint8).contiguous(memory_format=torch.channels_last).pin_memory(),
             torch.randint(0, 1000, (batch_size,)).pin_memory()) for _ in range(6)]  # fmt: skip
    contenders["ceiling"] = ahead(itertools.cycle(kept))
    for decode in ("torchvision", "pil"):
        samples = TarSamples(patterns["feedline"], "train", decode)
        # One long epoch, so that it is never held up by the start of another.
        loader = DataLoader(samples, batch_size, sampler=RandomSampler(samples, num_samples=1_000 * len(samples)), drop_last=True,
                            num_workers=options.workers, persistent_workers=True, prefetch_factor=2, pin_memory=True)  # fmt: skip
        contenders[f"dataloader_{decode}"] = ahead(iter(loader))
        next(contenders[f"dataloader_{decode}"])
    for _ in range(15):
        step(*first)
    names = ["ceiling", *fed, "dataloader_torchvision", "dataloader_pil"]
    rows: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    verdicts: dict[str, list[Any]] = {name: [] for name in fed}
    for _ in range(options.rounds):
        for name in names:
            # What was prefetched while others ran is used up first.
            measured = one_round(contenders[name], step, batch_size, options.seconds, skip_s=options.seconds / 2)
            for key, value in measured.items():
                rows[name].setdefault(key, []).append(value)
            if name in fed:
                # Since its last epoch began, which is within the round.
                said = live[name][-1]._connection.summary()
                verdicts[name].append({key: said[key] for key in ("verdict", "images_per_s", "client")})
    shown = {name: {key: spread(values) for key, values in measured.items()} for name, measured in rows.items()}
    ceiling = shown["ceiling"]["images_per_s"]["median"]
    for measured in shown.values():
        measured["share_of_ceiling"] = measured["images_per_s"]["median"] / ceiling  # type: ignore[assignment]
    for loader in fed.values():
        loader.close()
    return {"contenders": shown, "feedline_says": verdicts}


def one_round(batches: Batches, step: Callable[..., None], batch_size: int, seconds: float, skip_s: float) -> dict[str, float]:
    """Steps for `skip_s`, then measures for `seconds`."""
    deadline = time.perf_counter() + skip_s
    while time.perf_counter() < deadline:
        step(*next(batches))
        torch.cuda.current_stream().synchronize()
    with Utilisation() as utilisation:
        begun = time.perf_counter()
        waited, steps = 0.0, 0
        lag: list[torch.cuda.Event] = []
        while time.perf_counter() - begun < seconds:
            asked = time.perf_counter()
            images, labels = next(batches)
            waited += time.perf_counter() - asked
            step(images, labels)
            steps += 1
            # The host stays two steps ahead, as a training loop that reads its loss does.
            lag.append(torch.cuda.Event())
            lag[-1].record()
            if len(lag) > 2:
                lag.pop(0).synchronize()
        torch.cuda.synchronize()
        wall = time.perf_counter() - begun
    return {"images_per_s": steps * batch_size / wall, "blocked_in_next": waited / wall, "gpu_utilisation": utilisation.mean}


def forever(loader: feedline.Loader, live: list[Any]) -> Batches:
    """Epoch after epoch; `live` has the iteration that is under way."""
    while True:
        live[:] = [iter(loader)]
        yield from live[0]


def ahead(batches: Any) -> Batches:
    """Pinned batches, copied one step ahead on a side stream and normalised there: what a tuned training script does."""
    convert, stream = OUTPUT.for_torch("cuda"), torch.cuda.Stream()

    def copied() -> Any:
        images, labels = next(batches)
        with torch.cuda.stream(stream):
            moved = convert(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        return moved, event

    waiting = copied()
    while True:
        (images, labels), event = waiting
        torch.cuda.current_stream().wait_event(event)
        for tensor in (images, labels):
            tensor.record_stream(torch.cuda.current_stream())
        yield images, labels
        waiting = copied()


class Utilisation:
    """Mean of NVML's GPU utilisation, in percent; NaN where it is not to be had."""

    def __enter__(self) -> Utilisation:
        self._values: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._ends.wait(0.2):
                self._values.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except Exception as error:
            print(f"no utilisation: {error}", flush=True)

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def mean(self) -> float:
        """Over the samples so far."""
        return statistics.fmean(self._values) if self._values else float("nan")


if __name__ == "__main__":
    main()
