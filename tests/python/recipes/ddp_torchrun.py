"""Trains a ResNet-18 with DistributedDataParallel, a process a GPU. There is no sampler: ranks are found from torchrun, one
sidecar serves all ranks of a machine, and every sample comes once an epoch over all ranks.

torchrun --nproc-per-node 8 ddp_torchrun.py --data 'shards/train-{000000..000146}.tar' --steps 10000
"""

from __future__ import annotations

import argparse
import os

import torch
import torchvision
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import feedline

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch-size", type=int, default=256, help="per rank")
parser.add_argument("--size", type=int, default=224)
args = parser.parse_args()

has_cuda = torch.cuda.is_available()
if has_cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # Before the loader: "cuda" is the current device.
distributed.init_process_group("nccl" if has_cuda else "gloo")
rank = distributed.get_rank()

loader = feedline.Loader(
    args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True, device="cuda" if has_cuda else None,
    output=feedline.Output("float32", normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
    fields={"image": feedline.Image(["jpg", "jpeg", "png"], feedline.RandomResizedCrop(args.size), feedline.RandomHorizontalFlip()),
            "label": feedline.Int("cls")},
)  # fmt: skip

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=len(loader.dataset.classes))
model = DistributedDataParallel(model.to("cuda" if has_cuda else "cpu", memory_format=torch.channels_last))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = torch.nn.CrossEntropyLoss()

step = 0
while step < args.steps:
    image_count = 0
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, image_count = step + 1, image_count + len(labels)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if step == args.steps:
            break
    total = torch.tensor(image_count, device=images.device)
    distributed.all_reduce(total)
    if rank == 0:
        print(f"epoch {loader.epoch}: {total.item()} images on {distributed.get_world_size()} ranks", flush=True)
distributed.barrier()  # Else Gloo's thread may still hold the last sum when Python ends, and abort.
distributed.destroy_process_group()
