"""Feedline: a native sidecar reads, decodes and augments; batches arrive in shared memory, without a copy.

Importing this starts nothing, opens nothing and does not import torch. See `Loader`.
"""

from __future__ import annotations

from . import _native
from .batch import Batch, FaultReport
from .errors import (
    BudgetError,
    ForkedError,
    LoaderError,
    ProtocolError,
    ResourceError,
    SampleError,
    ShardError,
    SidecarExitError,
    SlotsHeldError,
    StallError,
)
from .fields import CenterCrop, Float, Image, Int, RandomHorizontalFlip, RandomResizedCrop, Resize
from .loader import Loader
from .mix import Mix

__version__ = _native.version()

__all__ = [
    "Batch",
    "BudgetError",
    "CenterCrop",
    "FaultReport",
    "Float",
    "ForkedError",
    "Image",
    "Int",
    "Loader",
    "LoaderError",
    "Mix",
    "ProtocolError",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "ResourceError",
    "SampleError",
    "ShardError",
    "SidecarExitError",
    "SlotsHeldError",
    "StallError",
    "__version__",
]
