"""Transforms that leave pixels where they are, lists of transforms, and the policies that choose among all.

Names, arguments and defaults are those of torchvision's ``v2``; see `transforms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .transforms import Fill, Transform, _number, _numbers, _pair, _probability, _range, _warp


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue changed in random order.

    Args:
        brightness: Range of the factor, (min, max), or how far it may be from 1.
        contrast: Likewise.
        saturation: Likewise.
        hue: Range of the turn of the colour circle, within -0.5 to 0.5, or how far it may be from 0.
    """

    brightness: float | Sequence[float] | None = None
    contrast: float | Sequence[float] | None = None
    saturation: float | Sequence[float] | None = None
    hue: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        names = ("brightness", "contrast", "saturation", "hue")
        return {"color_jitter": {name: _jitter(getattr(self, name), name) for name in names}}


def _jitter(value: object, name: str) -> tuple[float, float] | None:
    """torchvision's reading of an argument of ColorJitter."""
    if value is None:
        return None
    middle, bounds = (0.0, (-0.5, 0.5)) if name == "hue" else (1.0, (0.0, 65536.0))
    if isinstance(value, Sequence):
        low, high = _numbers(value, name, "ColorJitter", (2,))
    else:
        reach = _number(value, name, "ColorJitter")
        if reach < 0:
            raise ValueError(f"ColorJitter: {name} must not be negative if it is one number, got {value!r}")
        low, high = middle - reach, middle + reach
        if name != "hue":
            low = max(low, 0.0)
    if not bounds[0] <= low <= high <= bounds[1]:
        raise ValueError(f"ColorJitter: {name} is (min, max) within {bounds}, got {value!r}")
    return None if low == high == middle else (low, high)


@dataclass(frozen=True)
class Grayscale(Transform):
    """The luma in all three channels.

    Args:
        num_output_channels: Only 3 is offered, and is the default here: rows of images have three channels.
    """

    num_output_channels: int = 3

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            raise ValueError("Grayscale: only num_output_channels=3 is offered; take one channel of the batch, batch[:, :1]")

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_grayscale": {"p": 1.0}}


@dataclass(frozen=True)
class RandomGrayscale(Transform):
    """The luma in all channels, with probability ``p``."""

    p: float = 0.1

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_grayscale": {"p": _probability(self.p, "RandomGrayscale")}}


@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blurred by a Gaussian of random width; borders reflect.

    Args:
        kernel_size: Columns and rows of the kernel, odd, or a number for both.
        sigma: Standard deviation in pixels, or its range, (min, max).
    """

    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        kernel = _pair(self.kernel_size, "GaussianBlur", "kernel_size")
        if any(side % 2 == 0 or side > 1023 for side in kernel):
            raise ValueError(f"GaussianBlur: kernel_size is odd and at most 1023, got {self.kernel_size!r}")
        sigma = self.sigma if isinstance(self.sigma, Sequence) else (self.sigma, self.sigma)
        return {"gaussian_blur": {"kernel": kernel, "sigma": _range(sigma, "sigma", "GaussianBlur")}}


@dataclass(frozen=True)
class RandomSolarize(Transform):
    """Values of at least ``threshold`` (0 to 255) inverted, with probability ``p``."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        threshold = _number(self.threshold, "threshold", "RandomSolarize")
        if not 0 <= threshold <= 255:
            raise ValueError(f"RandomSolarize: threshold is 0 to 255, got {self.threshold!r}")
        return {"random_solarize": {"threshold": threshold, "p": _probability(self.p, "RandomSolarize")}}


@dataclass(frozen=True)
class RandomPosterize(Transform):
    """Only the upper ``bits`` (0 to 8) of each value kept, with probability ``p``."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        if not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            raise ValueError(f"RandomPosterize: bits is an int, 0 to 8, got {self.bits!r}")
        return {"random_posterize": {"bits": int(self.bits), "p": _probability(self.p, "RandomPosterize")}}


@dataclass(frozen=True)
class RandomEqualize(Transform):
    """The histogram of each channel made even, with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_equalize": {"p": _probability(self.p, "RandomEqualize")}}


@dataclass(frozen=True)
class RandomAutocontrast(Transform):
    """Each channel stretched to the full range, with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_autocontrast": {"p": _probability(self.p, "RandomAutocontrast")}}


@dataclass(frozen=True)
class RandomInvert(Transform):
    """Colours inverted, with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {"random_invert": {"p": _probability(self.p, "RandomInvert")}}


@dataclass(frozen=True)
class RandomAdjustSharpness(Transform):
    """Sharpened (``sharpness_factor`` over 1) or softened (below 1; 0 at least), with probability ``p``."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        factor = _number(self.sharpness_factor, "sharpness_factor", "RandomAdjustSharpness")
        if factor < 0:
            raise ValueError(f"RandomAdjustSharpness: sharpness_factor must not be negative, got {factor}")
        return {"random_adjust_sharpness": {"factor": factor, "p": _probability(self.p, "RandomAdjustSharpness")}}


def _list(transforms: object, owner: str) -> list[dict[str, Any]]:
    if not isinstance(transforms, Sequence) or not transforms:
        raise TypeError(f"{owner}: transforms must be a sequence of at least one transform, got {transforms!r}")
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise TypeError(f"{owner}: {transform!r} is not a transform of feedline")
    return [transform.spec() for transform in transforms]


@dataclass(frozen=True)
class RandomApply(Transform):
    """All of a list of ``transforms``, with probability ``p``; together they must keep the size."""

    transforms: Sequence[Transform]
    p: float = 0.5

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        return {
            "random_apply": {
                "transforms": _list(self.transforms, "RandomApply"),
                "p": _probability(self.p, "RandomApply"),
            }
        }


@dataclass(frozen=True)
class RandomChoice(Transform):
    """One of a list of ``transforms``, with weights ``p``, even if left out."""

    transforms: Sequence[Transform]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self.spec()

    @property
    def fixes_size(self) -> bool:  # type: ignore[override]
        """Whether every output has one size."""
        return all(transform.fixes_size for transform in self.transforms)

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        transforms = _list(self.transforms, "RandomChoice")
        weights = (1.0,) * len(transforms) if self.p is None else _numbers(self.p, "p", "RandomChoice", (len(transforms),))
        if min(weights) < 0 or sum(weights) == 0:
            raise ValueError(f"RandomChoice: weights must not be negative, and one must be above 0, got {self.p!r}")
        return {"random_choice": {"transforms": transforms, "p": weights}}


@dataclass(frozen=True)
class AutoAugment(Transform):
    """One of a policy's 25 pairs of operations ("AutoAugment: Learning Augmentation Policies from Data", CVPR 2019).

    Args:
        policy: ``imagenet``, ``cifar10`` or ``svhn``, or torchvision's enum.
        interpolation: Nearest or bilinear.
        fill: Colour of what comes from outside the image.
    """

    policy: Any = "imagenet"
    interpolation: Any = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        policy = getattr(self.policy, "value", self.policy)
        if policy not in ("imagenet", "cifar10", "svhn"):
            raise ValueError(f"AutoAugment: policy is imagenet, cifar10 or svhn, got {self.policy!r}")
        return {"auto_augment": {"policy": policy, "warp": _warp(self.interpolation, self.fill, "AutoAugment")}}


@dataclass(frozen=True)
class RandAugment(Transform):
    """Some operations of one strength ("RandAugment: Practical automated data augmentation", NeurIPS 2020).

    Args:
        num_ops: How many.
        magnitude: Their strength, below ``num_magnitude_bins``.
        num_magnitude_bins: Steps of the strength.
        interpolation: Nearest or bilinear.
        fill: Colour of what comes from outside the image.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        counts = (self.num_ops, self.magnitude, self.num_magnitude_bins)
        if not all(isinstance(count, int) for count in counts):
            raise TypeError(f"RandAugment: num_ops, magnitude and num_magnitude_bins are ints, got {counts}")
        if not (0 <= self.num_ops <= 64 and 0 <= self.magnitude < self.num_magnitude_bins >= 2):
            raise ValueError(f"RandAugment: num_ops is 0 to 64, and magnitude below num_magnitude_bins, got {counts}")
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        strength = {"operations": self.num_ops, "magnitude": self.magnitude, "bins": self.num_magnitude_bins}
        return {"rand_augment": {**strength, "warp": _warp(self.interpolation, self.fill, "RandAugment")}}


@dataclass(frozen=True)
class TrivialAugmentWide(Transform):
    """One operation of random strength ("TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", ICCV 2021).

    Args:
        num_magnitude_bins: Steps of the strength.
        interpolation: Nearest or bilinear.
        fill: Colour of what comes from outside the image.
    """

    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        if not isinstance(self.num_magnitude_bins, int) or self.num_magnitude_bins < 2:
            raise ValueError(f"TrivialAugmentWide: num_magnitude_bins is at least 2, got {self.num_magnitude_bins!r}")
        self.spec()

    def spec(self) -> dict[str, Any]:
        """The JSON that the sidecar is told."""
        warp = _warp(self.interpolation, self.fill, "TrivialAugmentWide")
        return {"trivial_augment_wide": {"bins": self.num_magnitude_bins, "warp": warp}}
