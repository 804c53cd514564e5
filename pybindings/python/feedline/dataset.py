"""What DataLoader's users expect of a loader beside its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loader import Loader


class Dataset:
    """What is known of a dataset without reading a sample."""

    def __init__(self, sample_count: int, classes: Sequence[str] | None) -> None:
        self._sample_count = sample_count
        #: Names of the classes by label, where a ``classes.json`` lies beside the shards, else None.
        self.classes = None if classes is None else list(classes)

    def __len__(self) -> int:
        return self._sample_count

    def __getitem__(self, index: object) -> Any:
        raise TypeError("samples are delivered as batches only: iterate over the loader, or use indices= for a subset")

    def __repr__(self) -> str:
        return f"Dataset({self._sample_count} samples)"


class Sampler:
    """Stands for DistributedSampler, whose work the plan does."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """As `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)
