"""Operations over whole batches: MixUp and CutMix, which blend each sample with its neighbour, labels too.

They run where the batch arrives: on the GPU with ``device="cuda"``, as a few kernels on the loader's own stream, after
`Output`'s conversion, else on the trainer's CPU. There is no better place: a blended batch is as large as the one that it
is made of, so the sidecar would read every slot a second time, while a GPU does it in a fraction of a millisecond.

What is drawn is a function of seed, epoch, position of the batch and rank, whatever came before: a resumed run draws as
an uninterrupted one. The numbers are those of Philox4x64-10, as NumPy has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import arguments
from .boxes import Boxes, BoxValues
from .fields import Field, Image, Int, Mask

#: Second word of the key, so that the draws of samples have streams of their own.
_KEY = int.from_bytes(b"batches\0", "little")

#: On the CPU so many rows are blended at a time: their floats stay in the L2 cache.
_CPU_ROWS = 2


@dataclass(frozen=True)
class Place:
    """Where a batch stands: what its draws are a function of."""

    seed: int
    epoch: int
    position: int
    rank: int


class BatchTransform:
    """What `MixUp` and `CutMix` have in common; see there."""

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None, labels: str = "label", p: float = 1.0) -> None:
        if not (isinstance(alpha, int | float) and 0 < alpha < math.inf):
            raise ValueError(f"alpha must be a number above 0, got {alpha!r}")
        self.alpha = float(alpha)
        self.num_classes = None if num_classes is None else arguments.int_within("num_classes", num_classes, 1, 1 << 31)
        self.labels = labels
        self.p = arguments.share("p", p)

    def run(self, values: list[Any], images: Iterable[tuple[int, bool]], label: int, draws: Iterator[float]) -> None:
        """Replaces labels and images among `values`; with each image whether its channels are the last axis."""
        is_mixed = next(draws) < self.p
        share = beta(self.alpha, draws) if is_mixed else 1.0
        if is_mixed:
            share = self._blend(values, images, share, draws)
        values[label] = soft_labels(values[label], share, self.num_classes, self.labels)

    def _blend(self, values: list[Any], images: Iterable[tuple[int, bool]], share: float, draws: Iterator[float]) -> float:
        """Blends the images; returns each row's share in its own label."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, num_classes={self.num_classes}, labels={self.labels!r}, p={self.p})"


class MixUp(BatchTransform):
    """Each image becomes ``share * image + (1 - share) * neighbour``, its label likewise; given to `Loader` as
    ``batch_transform``. The neighbour is the row before, the last one for the first, as in torchvision.

    Images keep their dtype; uint8 is computed in float32 and rounded to the nearest. Labels become float32 of shape
    (N, num_classes). Semantics of ``torchvision.transforms.v2.MixUp``; from "mixup: Beyond Empirical Risk Minimization"
    (Zhang et al., 2018).

    Args:
        alpha: The share is drawn from Beta(alpha, alpha), one for a batch.
        num_classes: Classes; None where labels are (N, classes) numbers already.
        labels: Name of the field with the labels.
        p: Chance that a batch is mixed; the labels of others are soft as well.
    """

    def _blend(self, values: list[Any], images: Iterable[tuple[int, bool]], share: float, draws: Iterator[float]) -> float:
        for place, _ in images:
            values[place] = blended(values[place], share)
        return share


class CutMix(BatchTransform):
    """A box of each image is replaced by the neighbour's, and the label blended by area; given to `Loader` as
    ``batch_transform``. The neighbour is the row before, the last one for the first, as in torchvision.

    Labels become float32 of shape (N, num_classes). Semantics of ``torchvision.transforms.v2.CutMix``; from "CutMix:
    Regularization Strategy to Train Strong Classifiers with Localizable Features" (Yun et al., 2019).

    Args:
        alpha: The share of the image that stays is drawn from Beta(alpha, alpha), one for a batch; where the box is cut
            off by the border, more stays.
        num_classes: Classes; None where labels are (N, classes) numbers already.
        labels: Name of the field with the labels.
        p: Chance that a batch is mixed; the labels of others are soft as well.
    """

    def _blend(self, values: list[Any], images: Iterable[tuple[int, bool]], share: float, draws: Iterator[float]) -> float:
        across, down = next(draws), next(draws)
        kept = 1.0
        for place, is_channels_last in images:
            height, width = values[place].shape[1:3] if is_channels_last else values[place].shape[2:4]
            left, top, right, bottom = box = cut_box(share, across, down, width, height)
            values[place] = pasted(values[place], box, is_channels_last)
            kept = 1.0 - (right - left) * (bottom - top) / (width * height)
        return kept


class Mixing:
    """The batch transforms of a loader, and where in a batch they act.

    Args:
        transforms: One, or several of which each batch gets one.
        fields: The loader's.
        is_channels_last: Where NumPy's images have their channels; torch's have them first.
    """

    def __init__(
        self, transforms: BatchTransform | Iterable[BatchTransform], fields: Mapping[str, Field], is_channels_last: bool
    ) -> None:
        listed = list(transforms) if isinstance(transforms, Iterable) else [transforms]
        if not listed or not all(isinstance(transform, BatchTransform) for transform in listed):
            raise TypeError(f"batch_transform must be a MixUp or CutMix, or several to choose from, got {transforms!r}")
        names = list(fields)
        self.transforms = listed
        self.is_channels_last = is_channels_last
        self.images = [place for place, field in enumerate(fields.values()) if isinstance(field, Image)]
        if not self.images:
            raise ValueError(f"batch_transform needs an Image field; the fields are {', '.join(names)}")
        if masks := [name for name, field in fields.items() if isinstance(field, Mask)]:
            raise ValueError(f"batch_transform would tear the mask {masks[0]!r} from its image: leave one of them out")
        if boxes := [name for name, field in fields.items() if isinstance(field, Boxes | BoxValues)]:
            raise ValueError(
                f"batch_transform would blend objects of two images, and the boxes {boxes[0]!r} tell only those of one: leave "
                "one of them out"
            )
        self.labels = []
        for transform in listed:
            if transform.labels not in fields:
                raise ValueError(f"{transform!r}: there is no field {transform.labels!r}; the fields are {', '.join(names)}")
            if isinstance(fields[transform.labels], Int) and transform.num_classes is None:
                raise ValueError(f"{transform!r}: num_classes= is needed, as the labels of {transform.labels!r} are numbers")
            self.labels.append(names.index(transform.labels))

    def run(self, values: list[Any], place: Place) -> None:
        """Replaces images and labels among the `values` of a batch."""
        draws = uniforms(place)
        chosen = int(next(draws) * len(self.transforms))
        images = [(place, self.is_channels_last and _is_numpy(values[place])) for place in self.images]
        self.transforms[chosen].run(values, images, self.labels[chosen], draws)

    def check(self, values: Mapping[int, Any]) -> None:
        """Looks at class numbers while they are in host memory: what is out of range would end a GPU's context."""
        for transform, place in zip(self.transforms, self.labels, strict=True):
            if transform.num_classes is not None:
                _check_range(values[place], transform.num_classes, transform.labels)

    def checked(self) -> set[int]:
        """The places of the labels that `check` looks at."""
        pairs = zip(self.transforms, self.labels, strict=True)
        return {place for transform, place in pairs if transform.num_classes is not None}


def uniforms(place: Place) -> Iterator[float]:
    """Numbers from 0 to below 1, of 53 bits, that belong to a place."""
    import numpy

    words = numpy.random.Philox(counter=[0, place.epoch, place.position, place.rank], key=[place.seed, _KEY])
    while True:
        for word in words.random_raw(4).tolist():
            yield (word >> 11) * 2.0**-53


def beta(alpha: float, draws: Iterator[float]) -> float:
    """A draw from Beta(alpha, alpha), as the share of one of two gamma variates, whose logarithms do not underflow."""
    one, other = _log_gamma_variate(alpha, draws), _log_gamma_variate(alpha, draws)
    difference = other - one
    return 1.0 / (1.0 + math.exp(difference)) if difference < 700 else 0.0


def _log_gamma_variate(alpha: float, draws: Iterator[float]) -> float:
    """The logarithm of a draw from Gamma(alpha, 1): "A Simple Method for Generating Gamma Variables" (Marsaglia, Tsang, 2000)."""
    if alpha < 1:
        return _log_gamma_variate(alpha + 1, draws) + math.log1p(-next(draws)) / alpha
    shape = alpha - 1 / 3
    scale = 1 / math.sqrt(9 * shape)
    while True:
        normal = math.sqrt(-2 * math.log1p(-next(draws))) * math.cos(2 * math.pi * next(draws))
        volume = 1 + scale * normal
        if volume <= 0:
            continue
        log_volume = 3 * math.log(volume)
        if math.log1p(-next(draws)) < normal * normal / 2 + shape * (1 - volume**3 + log_volume):
            return math.log(shape) + log_volume


def cut_box(share: float, across: float, down: float, width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the box that is replaced, with `share` of the area outside if it fits."""
    centre_x, centre_y = int(across * width), int(down * height)
    reach = 0.5 * math.sqrt(1.0 - share)
    half_width, half_height = int(reach * width), int(reach * height)
    return (
        max(centre_x - half_width, 0),
        max(centre_y - half_height, 0),
        min(centre_x + half_width, width),
        min(centre_y + half_height, height),
    )


def blended(images: Any, share: float) -> Any:
    """``share`` of each row and the rest of the row before it."""
    if _is_numpy(images):
        import numpy

        made = numpy.empty_like(images)
        for first, last, neighbours in _pieces(images, _CPU_ROWS):
            mixed = images[first:last] * numpy.float32(share) + neighbours * numpy.float32(1.0 - share)
            made[first:last] = numpy.rint(mixed) if images.dtype == numpy.uint8 else mixed
        return made
    import torch

    made = torch.empty_like(images)
    scratch = None
    for first, last, neighbours in _pieces(images, len(images) if images.is_cuda else _CPU_ROWS):
        own, target = images[first:last], made[first:last]
        if images.dtype == torch.uint8:
            if scratch is None or len(scratch) != len(own):
                scratch = torch.empty_like(own, dtype=torch.float32)
            torch.mul(own, share, out=scratch)
            # uint8 is rounded to zero.
            target.copy_(scratch.add_(neighbours, alpha=1.0 - share).add_(0.5))
        else:
            torch.mul(own, share, out=target)
            target.add_(neighbours, alpha=1.0 - share)
    return made


def pasted(images: Any, box: tuple[int, int, int, int], is_channels_last: bool) -> Any:
    """Each row with a box (left, top, right, bottom) of the row before it."""
    left, top, right, bottom = box
    made = images.copy() if _is_numpy(images) else images.clone()
    part: tuple[slice, ...] = (slice(None), slice(top, bottom), slice(left, right))
    if not is_channels_last:
        part = (slice(None), *part)
    made[1:][part] = images[:-1][part]
    made[:1][part] = images[-1:][part]
    return made


def soft_labels(labels: Any, share: float, num_classes: int | None, name: str) -> Any:
    """float32 labels, ``share`` of each row's and the rest of that of the row before it."""
    if num_classes is not None:
        labels = _one_hot(labels, num_classes, name)
    if len(labels.shape) != 2:
        raise ValueError(f"labels in {name!r} are {tuple(labels.shape)}: num_classes= makes (N, num_classes) of class numbers")
    if _is_numpy(labels):
        import numpy

        rolled = numpy.roll(labels, 1, 0) * numpy.float32(1.0 - share)
        return labels.astype(numpy.float32) * numpy.float32(share) + rolled
    return labels.float().mul(share).add_(labels.roll(1, 0), alpha=1.0 - share)


def _one_hot(labels: Any, num_classes: int, name: str) -> Any:
    if len(labels.shape) != 1:
        raise ValueError(f"labels in {name!r} are {tuple(labels.shape)} numbers: leave num_classes= out for soft labels")
    if _is_numpy(labels):
        import numpy

        _check_range(labels, num_classes, name)
        made = numpy.zeros((len(labels), num_classes), numpy.float32)
        made[numpy.arange(len(labels)), labels] = 1
        return made
    import torch

    if not labels.is_cuda:
        _check_range(labels, num_classes, name)
    made = torch.zeros((len(labels), num_classes), dtype=torch.float32, device=labels.device)
    return made.scatter_(1, labels.view(-1, 1).long(), 1.0)


def _check_range(labels: Any, num_classes: int, name: str) -> None:
    least, most = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if least < 0 or most >= num_classes:
        raise ValueError(f"labels in {name!r} are from {least} to {most}, but num_classes={num_classes}")


def _pieces(images: Any, rows: int) -> Iterator[tuple[int, int, Any]]:
    """Runs of rows as (first, last, rows before them); the first row is a run of its own, with the last before it."""
    count = len(images)
    if count:
        yield 0, 1, images[count - 1 :]
    for first in range(1, count, max(rows, 1)):
        last = min(first + rows, count)
        yield first, last, images[first - 1 : last - 1]


def _is_numpy(values: Any) -> bool:
    return type(values).__module__ == "numpy"
