"""What every contender does with its iterator of batches: count, time, print one line of JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import recipes


def arguments(description: str) -> argparse.ArgumentParser:
    """The command line that all contenders share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shards", required=True, help="pattern of the shards, index.npy beside them")
    parser.add_argument("--images", type=int, required=True, help="how many images to take")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--recipe", choices=recipes.VIEWS, default="train")
    parser.add_argument("--takes", type=int, default=0, help="measure the taking of so many ready batches instead")
    return parser


def run(options: argparse.Namespace, start: Callable[[], Iterator[Any]], dtype: str = "torch.uint8") -> None:
    """Takes batches as `options` say and prints what was measured.

    A batch is the images and the labels; the images of a recipe of several views are a list, in the order of the views.
    """
    begun = time.perf_counter()
    batches = start()
    images, labels = next(batches)
    first = time.perf_counter()
    sides = [side for side, _ in recipes.VIEWS[options.recipe]]
    for view, side in zip([images] if len(sides) == 1 else images, sides, strict=True):
        assert tuple(view.shape) == (options.batch_size, 3, side, side), view.shape
        assert str(view.dtype) == dtype, view.dtype
    measured: dict[str, Any] = {"first_batch_s": first - begun}
    if options.takes:
        del images, labels
        measured["takes"] = take_ready(batches, start, options.takes)
    else:
        taken = options.batch_size
        while taken < options.images:
            images, labels = next(batches)
            taken += len(labels)
        measured |= {"images": taken, "wall_s": time.perf_counter() - begun}
    print(json.dumps(measured), flush=True)


def take_ready(batches: Iterator[Any], start: Callable[[], Iterator[Any]], takes: int) -> dict[str, list[float]]:
    """Microseconds that `next()` took for batches that had been waiting.

    They are taken in rounds of three, with a pause before each in which everything that prefetches fills up. The first
    of a round meets caches that the decoder next door has filled: `first_us`; the others are what a loop sees: `us`.
    """

    def skip(count: int) -> None:
        nonlocal batches
        for _ in range(count):
            if next(batches, None) is None:
                batches = start()

    # Past everything that was fetched ahead of the first batch, a batch takes as long as making one.
    skip(16)
    begun = time.perf_counter()
    skip(4)
    batch_s = (time.perf_counter() - begun) / 4
    time.sleep(16 * batch_s)
    first: list[float] = []
    others: list[float] = []
    while len(others) < takes:
        times: list[float] = []
        for _ in range(3):
            asked = time.perf_counter_ns()
            batch = next(batches, None)
            taken = time.perf_counter_ns()
            if batch is None:
                # The first batch of an epoch is not one that was ready, nor may those after it be.
                batches = start()
                next(batches)
                break
            times.append((taken - asked) / 1000)
            images, labels = batch
            del batch, images, labels
        first += times[:1]
        others += times[1:]
        time.sleep(5 * batch_s)
    return {"us": others, "first_us": first}
