"""Trains a ResNet-18 with Hugging Face accelerate. The loader is not given to `prepare`: ranks are found from
torch.distributed, and with `device=` batches arrive on the rank's GPU.

accelerate launch hf_accelerate.py --data 'shards/train-{000000..000146}.tar' --steps 10000
"""

from __future__ import annotations

import argparse
import itertools

import torch
import torchvision
from accelerate import Accelerator
from accelerate.utils import set_seed

import feedline

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch-size", type=int, default=256, help="per rank")
parser.add_argument("--size", type=int, default=224)
args = parser.parse_args()

accelerator = Accelerator()
loader = feedline.Loader(
    args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True,
    device=accelerator.device if accelerator.device.type == "cuda" else None,
    output=feedline.Output("float32", normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
    fields={"image": feedline.Image(["jpg", "jpeg", "png"], feedline.RandomResizedCrop(args.size), feedline.RandomHorizontalFlip()),
            "label": feedline.Int("cls")},
)  # fmt: skip
set_seed(0)
model = torchvision.models.resnet18(num_classes=len(loader.dataset.classes)).to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.register_for_checkpointing(loader)  # save_state and load_state then hold where the loader is.

# Each turn of the loader is an epoch of its own.
endless = itertools.chain.from_iterable(itertools.repeat(loader))
for step, (images, labels) in enumerate(itertools.islice(endless, args.steps), 1):
    with accelerator.autocast():
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step}: loss {loss.item():.4f}")
accelerator.end_training()
