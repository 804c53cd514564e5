"""What becomes of an image's pixels before the trainer gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import arguments

#: Of the pixels of one batch, what the trainer gets.
Apply = Callable[[Any], Any]


class Output:
    """Images as floating-point numbers, normalised; given to `Loader` as ``output``.

    Batches travel as uint8, a quarter of float32's bytes, and are converted where they arrive: on the GPU with
    ``device="cuda"``, by one kernel on the loader's own stream, else on the CPU. Only `Image` fields are converted.

    A pixel becomes ``(pixel / 255 - mean) / std`` of its channel, computed in float32 as one multiplication and one
    addition, then rounded to ``dtype`` once; CPU and GPU differ by that rounding at most.

    Args:
        dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``. NumPy has no bfloat16.
        channels_last: The memory format of torch's tensors, whose shape is (N, 3, H, W) either way. NumPy's arrays keep
            the loader's ``layout``.
        normalize: Mean and standard deviation, each a number or one for red, green and blue, of pixels from 0 to 1, as
            torchvision's Normalize takes them. Without it pixels are from 0 to 1.
    """

    def __init__(
        self,
        dtype: str = "float32",
        channels_last: bool = True,
        normalize: tuple[float | Iterable[float], float | Iterable[float]] | None = None,
    ) -> None:
        name = str(dtype).removeprefix("torch.")
        self.dtype: str = arguments.one_of("dtype", name, ("bfloat16", "float16", "float32"))
        self.channels_last = bool(channels_last)
        mean, std = (0.0, 1.0) if normalize is None else _pair(normalize)
        self.mean, self.std = _channels("mean", mean), _channels("standard deviation", std)
        if not all(value > 0 for value in self.std):
            raise ValueError(f"a standard deviation must be above 0, got {self.std}")
        if any(abs(value) > 2 * len(self.mean) for value in (*self.mean, *self.std)):
            raise ValueError(f"mean and standard deviation are of pixels from 0 to 1, got {self.mean} and {self.std}: divide by 255")

    def for_torch(self, device: Any) -> Apply:
        """Makes of a uint8 tensor (N, 3, H, W) on `device` one of `dtype` there."""
        import torch

        dtype = getattr(torch, self.dtype)
        memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        scale, bias = (torch.tensor(row, dtype=torch.float32).view(1, 3, 1, 1).to(device) for row in self._line())

        def apply(pixels: Any) -> Any:
            made = torch.empty(pixels.shape, dtype=dtype, device=pixels.device, memory_format=memory_format)
            return torch.addcmul(bias, pixels, scale, out=made)

        return apply

    def for_numpy(self, is_channels_last: bool) -> Apply:
        """Makes of a uint8 array one of `dtype`; `is_channels_last` says where its channels are."""
        import numpy

        if self.dtype == "bfloat16":
            raise ValueError("NumPy has no bfloat16: ask for float16 or float32, or install torch")
        shape = (1, 1, 1, 3) if is_channels_last else (1, 3, 1, 1)
        scale, bias = (numpy.array(row, numpy.float32).reshape(shape) for row in self._line())
        dtype = self.dtype
        return lambda pixels: (pixels * scale + bias).astype(dtype, copy=False)

    def _line(self) -> tuple[list[float], list[float]]:
        """Scale and bias of each channel."""
        return [1 / (255 * std) for std in self.std], [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]

    def __repr__(self) -> str:
        return f"Output({self.dtype!r}, channels_last={self.channels_last}, normalize=({self.mean}, {self.std}))"


def _pair(normalize: Any) -> tuple[Any, Any]:
    if not isinstance(normalize, tuple | list) or len(normalize) != 2:
        raise TypeError(f"normalize must be (mean, std), got {normalize!r}")
    return normalize[0], normalize[1]


def _channels(name: str, value: Any) -> list[float]:
    """One number a channel."""
    numbers = [value] * 3 if isinstance(value, int | float) else list(value)
    if len(numbers) != 3:
        raise ValueError(f"images have 3 channels, got {len(numbers)} numbers for {name}")
    return [float(number) for number in numbers]
