"""torchvision's reference recipe for classification, in its second version ("How to Train State-Of-The-Art Models Using
TorchVision's Latest Primitives"): TrivialAugment, random erasing, MixUp or CutMix, label smoothing, no weight decay on norms,
warm-up and cosine, an average of the weights; training at 176 pixels, validation at 224 after a resize to 232.

torchrun --nproc-per-node 8 torchvision_reference.py --data imagenet/train --val imagenet/val --steps 750000
"""

from __future__ import annotations

import argparse
import itertools
import os

import torch
import torchvision
from torch import distributed, nn
from torch.optim import lr_scheduler, swa_utils

import feedline

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SOURCES = ["jpg", "jpeg", "png"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True)
parser.add_argument("--val")
parser.add_argument("--model", default="resnet50")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--warmup-steps", type=int, default=0)
parser.add_argument("--batch-size", type=int, default=128, help="per rank")
parser.add_argument("--size", type=int, default=176)
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--ema-decay", type=float, default=0.998)
args = parser.parse_args()

has_cuda = torch.cuda.is_available()
if "RANK" in os.environ:
    if has_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if has_cuda else "gloo")
is_first = not distributed.is_initialized() or distributed.get_rank() == 0
device = torch.device("cuda" if has_cuda else "cpu")

classes = feedline.Loader(args.data, fields={"label": feedline.Int("cls")}).dataset.classes
train = feedline.Loader(
    args.data, batch_size=args.batch_size, shuffle=True, seed=0, drop_last=True, device="cuda" if has_cuda else None,
    fields={"image": feedline.Image(
                SOURCES, feedline.RandomResizedCrop(args.size), feedline.RandomHorizontalFlip(),
                feedline.TrivialAugmentWide(interpolation="bilinear"), feedline.ToDtype(torch.float32, scale=True),
                feedline.Normalize(MEAN, STD), feedline.RandomErasing(0.1)),
            "label": feedline.Int("cls")},
    batch_transform=[feedline.MixUp(alpha=0.2, num_classes=len(classes)), feedline.CutMix(alpha=1.0, num_classes=len(classes))],
)  # fmt: skip
val = feedline.Loader(
    args.val or args.data, batch_size=args.batch_size, device="cuda" if has_cuda else None,
    output=feedline.Output("float32", normalize=(MEAN, STD)),
    fields={"image": feedline.Image(SOURCES, feedline.Resize(args.size * 232 // 176), feedline.CenterCrop(args.size * 224 // 176)),
            "label": feedline.Int("cls")},
)  # fmt: skip

torch.manual_seed(0)
model = torchvision.models.get_model(args.model, num_classes=len(classes)).to(device, memory_format=torch.channels_last)
average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(args.ema_decay), use_buffers=True)
norms = [p for module in model.modules() if isinstance(module, nn.BatchNorm2d) for p in module.parameters()]
kept = {id(p) for p in norms}
others = [p for p in model.parameters() if id(p) not in kept]
optimizer = torch.optim.SGD(
    [{"params": others, "weight_decay": 2e-5}, {"params": norms, "weight_decay": 0.0}], lr=args.lr, momentum=0.9
)
cosine: lr_scheduler.LRScheduler = lr_scheduler.CosineAnnealingLR(optimizer, args.steps - args.warmup_steps)
if args.warmup_steps:
    warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=args.warmup_steps)
    cosine = lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[args.warmup_steps])
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
wrapped = nn.parallel.DistributedDataParallel(model) if distributed.is_initialized() else model

model.train()
endless = itertools.chain.from_iterable(itertools.repeat(train))
for step, (images, labels) in enumerate(itertools.islice(endless, args.steps), 1):
    loss = criterion(wrapped(images), labels)  # labels: (N, classes), mixed
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    cosine.step()
    average.update_parameters(model)
    if is_first:
        print(f"step {step}: loss {loss.item():.4f}")

average.eval()
counts = torch.zeros(2, dtype=torch.int64, device=device)
with torch.inference_mode():
    for images, labels in val:
        counts += torch.stack([(average(images).argmax(1) == labels).sum(), torch.tensor(len(labels), device=device)])
if distributed.is_initialized():
    distributed.all_reduce(counts)
    distributed.barrier()  # Else Gloo's thread may still hold the sum when Python ends, and abort.
    distributed.destroy_process_group()
if is_first:
    print(f"accuracy {counts[0].item() / counts[1].item():.4f} of {counts[1].item()} images")
