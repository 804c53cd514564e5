"""A few batches on the GPU with NVTX ranges and a kernel a batch, to be run under a profiler.

    ncu --nvtx --clock-control none python bench/h200/nvtx.py SHARDS
"""

import os
import sys

import torch

import feedline

fields = {"image": feedline.Image(["jpg"], feedline.RandomResizedCrop(64)), "label": feedline.Int("cls")}
print("the profiler's library:", os.environ.get("NVTX_INJECTION64_PATH"), flush=True)
# The conversion is a kernel, within the range of the copy.
loader = feedline.Loader(sys.argv[1], 16, fields=fields, device="cuda", nvtx=True, output=feedline.Output("bfloat16", normalize=((0.5,) * 3, (0.5,) * 3)))
for number, _ in enumerate(loader):
    if number == 3:
        break
torch.cuda.synchronize()
loader.close()
