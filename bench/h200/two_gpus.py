"""Do two ranks on two GPUs keep to their own, and consume together what one would?

Each way of naming GPUs in CUDA_VISIBLE_DEVICES starts two ranks by torchrun, a process a GPU. NVML says on which GPUs each
rank has a context; the ranks' traces, merged, must be that of a single rank. One JSON file.

    python bench/h200/two_gpus.py --out raw.json
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = "FEEDLINE_BENCH_FOLDER"


def main() -> None:
    """Runs every spelling, and a rank by itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    if FOLDER in os.environ:
        rank_of(Path(os.environ[FOLDER]))
        return
    import torch

    uuids = [f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in range(torch.cuda.device_count())]
    found: dict[str, Any] = {"gpus": uuids, "runs": []}
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), options.samples)
        for visible, ranks in (("0,1", 2), ("1,0", 2), (",".join(uuids[:2]), 2), ("1", 1), (uuids[1], 1)):
            found["runs"].append(launch(Path(scratch), visible, ranks))
            print(json.dumps(found["runs"][-1]), flush=True)
    from feedline import merge_trace

    traces = {merge_trace([rank["trace"] for rank in one["ranks"]]) for one in found["runs"]}
    found["traces_agree"] = len(traces) == 1
    # A rank's context is on one GPU: the one that its place in the variable names.
    expected = {"0,1": [[0], [1]], "1,0": [[1], [0]], ",".join(uuids[:2]): [[0], [1]], "1": [[1]], uuids[1]: [[1]]}
    found["contexts_right"] = all([rank["contexts"] for rank in one["ranks"]] == expected[one["visible"]] for one in found["runs"])
    print(json.dumps({name: found[name] for name in ("traces_agree", "contexts_right")}))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))
    sys.exit(not (found["traces_agree"] and found["contexts_right"]))


def write(folder: Path, samples: int) -> None:
    """A shard of noise."""
    from PIL import Image

    random = np.random.default_rng(0)
    with tarfile.open(folder / "train-000000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(samples):
            file = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (64, 80, 3), np.uint8)).save(file, "JPEG")
            for suffix, data in (("jpg", file.getvalue()), ("cls", str(number % 10).encode())):
                member = tarfile.TarInfo(f"{number:05}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def launch(folder: Path, visible: str, ranks: int) -> dict[str, Any]:
    """What the ranks of one run say of themselves."""
    for old in folder.glob("rank-*"):
        old.unlink()
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), __file__]
    begun = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    said = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*"))]
    if done.returncode or len(said) != ranks:
        raise SystemExit(f"error: {visible}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return {"visible": visible, "seconds": time.monotonic() - begun, "ranks": said}


def rank_of(folder: Path) -> None:
    """One rank: an epoch of DistributedDataParallel, then what it has where."""
    import torch
    from torch import distributed

    import feedline

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", local))
    fields = {"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(64)), "label": feedline.Int("cls")}
    loader = feedline.Loader(
        str(folder / "train-000000.tar"), 32, shuffle=True, seed=3, fields=fields, device="cuda", tail="short",
        output=feedline.Output("float32", normalize=((0.5,) * 3, (0.5,) * 3)),
    )  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64 * 3, 10)).cuda())
    rows = 0
    with model.join():
        for images, labels in loader:
            assert images.device.index == local and labels.device.index == local
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            rows += len(labels)
    torch.cuda.synchronize()
    said = {"rank": distributed.get_rank(), "rows": rows, "contexts": contexts(), "trace": loader.trace_hash}
    said["primary_contexts"] = [torch._C._cuda_hasPrimaryContext(number) for number in range(torch.cuda.device_count())]
    Path(folder, f"rank-{said['rank']}").write_text(json.dumps(said))
    distributed.barrier()
    loader.close()
    distributed.destroy_process_group()


def contexts() -> list[int]:
    """GPUs, as NVML numbers them, on which this process has a context."""
    import pynvml

    pynvml.nvmlInit()
    found = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        if any(process.pid == os.getpid() for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)):
            found.append(number)
    return found


if __name__ == "__main__":
    main()
