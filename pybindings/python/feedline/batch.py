"""A batch: the tensors of the fields in order, and what is known about the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from . import forks
from .errors import ForkedError
from .tensors import framework

if TYPE_CHECKING:
    from ._native import BatchInfo


@dataclass(frozen=True)
class FaultReport:
    """One bad sample, whose row a substitute fills.

    Attributes:
        fault_class: The kind of fault, as it is counted: ``truncated``, ``corrupt``, ``missing-field``, …
        shard: The shard's path.
        key: The sample's key.
        field: The field that failed, empty when the whole sample did.
        offset: Where the field's bytes start in the shard.
        message: Details.
        sample: The sample's number in the dataset.
        row: The row of the batch.
    """

    fault_class: str
    shard: str
    key: str
    field: str
    offset: int
    message: str
    sample: int
    row: int

    def __str__(self) -> str:
        place = f"{self.shard}: key {self.key!r}, field {self.field!r}, byte {self.offset}"
        return f"{place}: {self.fault_class}: {self.message}"


class Words(NamedTuple):
    """What a batch says about its rows, in memory of its own."""

    sample_keys: list[str]
    valid: list[bool]
    report: list[FaultReport]
    epoch: int
    position: int
    end_position: int
    spilled_bytes: int = 0


class Batch(tuple[Any, ...]):
    """One batch: a tuple of the fields' tensors, lists or pairs, in the order of the loader's ``fields``.

    ``images, labels = batch`` and ``batch["image"]`` both work. A tensor in the ring stays valid as long as it or any
    view of it lives; the last one to die gives the slot back. Lists of str, bytes and JSON objects, and pairs of values
    and offsets, are memory of their own and hold no slot.
    """

    _names: dict[str, int]
    _info: BatchInfo | Words | None
    _loan: BatchInfo | None
    _generation: int | None

    def __getitem__(self, key: Any) -> Any:
        """A field by its name, or as in any tuple by number or slice."""
        self._check_process()
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, self._names[key])
            except KeyError:
                names = ", ".join(map(repr, self._names)) or "none, as it was made from bare tensors"
                raise KeyError(f"no field {key!r} in this batch; its fields are: {names}") from None
        return tuple.__getitem__(self, key)

    def __iter__(self) -> Iterator[Any]:
        # The test of _check_process, spelt out: this runs once a batch in every training loop.
        if self._generation != forks.generation and self._generation is not None:
            self._check_process()
        return tuple.__iter__(self)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields' names, in order."""
        return tuple(self._names)

    @property
    def sample_keys(self) -> list[str]:
        """The key of each row's sample."""
        return self._words().sample_keys

    @property
    def valid(self) -> Any:
        """Whether each row counts, bool, shape (N,): False for the rows that ``tail="pad"`` repeats."""
        return _like(self, self._words().valid)

    @property
    def report(self) -> list[FaultReport]:
        """The bad samples whose rows hold substitutes; empty as a rule."""
        return self._words().report

    @property
    def epoch(self) -> int:
        """The epoch that the batch belongs to."""
        return self._described().epoch

    @property
    def position(self) -> int:
        """Global samples of the epoch that come before this batch's global batch."""
        return self._described().position

    @property
    def end_position(self) -> int:
        """Global samples of the epoch up to the end of this batch's global batch: where to resume after it."""
        return self._described().end_position

    @property
    def spilled_bytes(self) -> int:
        """Bytes of texts, bytes and arrays that the slot had no room for; they came in memory of their own. 0 as a rule."""
        return self._described().spilled_bytes

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """This batch with every tensor moved by its ``.to``, as in ``batch.to("cuda", non_blocking=True)``; tensors in lists
        and pairs too, while str, bytes and JSON objects stay as they are.

        The result has the same names, keys and report, and holds no slot unless a tensor of it does.
        """
        return self._mapped(lambda field: over_tensors(field, lambda tensor: _to(tensor, args, kwargs)))

    def pin_memory(self, device: Any = None) -> Batch:
        """This batch with every tensor copied into page-locked memory; itself where CUDA is not available."""
        tensors = [tensor for field in self for tensor in tensors_of(field)]
        if not tensors or not all(_is_torch(tensor) for tensor in tensors) or not _has_cuda():
            return self
        return self._mapped(lambda field: over_tensors(field, lambda tensor: tensor.pin_memory()))

    def release_after(self, stream: Any) -> None:
        """Has the batch's memory wait for what is queued on `stream` (a torch.cuda.Stream) when the batch is dead.

        For copies and kernels on side streams; the stream that is current at the ``next()`` after the batch's death is
        reckoned with anyway. Without ``device`` and ``pin_memory`` nothing needs it: a copy from pageable memory is over
        when its call returns.
        """
        self._check_process()
        if self._loan is not None:
            self._loan.release_after(stream.cuda_stream)
        for field in self:
            for tensor in tensors_of(field):
                if _is_torch(tensor) and tensor.is_cuda:
                    tensor.record_stream(stream)

    def _mapped(self, function: Callable[[Any], Any]) -> Batch:
        tensors = [function(tensor) for tensor in self]
        kept = [new is old for new, old in zip(tensors, self, strict=True)]
        if all(kept):
            return self
        info = None if self._info is None else self._words()
        return make_batch(tensors, self._names, info, self._generation if any(kept) else None)

    def _described(self) -> BatchInfo | Words:
        if self._info is None:
            raise AttributeError("this batch was made from bare tensors, so its rows are not described")
        return self._info

    def _words(self) -> Words:
        info = self._described()
        if isinstance(info, Words):
            return info
        self._check_process()
        keys, valid, report = info.words()
        faults = [_fault(fields) for fields in json.loads(report)]
        self._info = words = Words(
            keys, valid, faults, info.epoch, info.position, info.end_position, info.spilled_bytes
        )
        return words

    def _check_process(self) -> None:
        if self._generation is not None and self._generation != forks.generation:
            raise ForkedError(
                "this batch was made before the process forked, and its memory is not mapped in the child: iterate over "
                "the loader in the child, which gives it batches of its own"
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        info = None if self._info is None else self._words()
        return make_batch, (list(self), self._names, info, None)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {_shape(tensor)}" for name, tensor in zip(self._names, self, strict=False))
        return f"Batch({fields})" if self._names else f"Batch{tuple(self)!r}"


# A batch that someone makes from bare tensors, as functions that map over tuples do, has no names and no words.
Batch._names = {}
Batch._info = None
Batch._loan = None
Batch._generation = None


def make_batch(
    tensors: list[Any], names: dict[str, int], info: BatchInfo | Words | None, generation: int | None
) -> Batch:
    """A batch of `tensors`, whose fields are called by `names`, described by `info`.

    `generation` is that of the process in which the batch's memory is mapped, None where it is not in a ring.
    """
    batch = Batch(tensors)
    batch._names = names
    batch._info = info
    batch._loan = None if isinstance(info, Words) else info
    batch._generation = generation
    return batch


def _fault(fields: dict[str, Any]) -> FaultReport:
    return FaultReport(fault_class=fields.pop("class"), **fields)


def tensors_of(field: Any) -> list[Any]:
    """The tensors of a field: itself, or those of a list or pair of tensors."""
    if isinstance(field, list | tuple):
        return [item for item in field if _is_tensor(item)]
    return [field] if _is_tensor(field) else []


def over_tensors(field: Any, function: Callable[[Any], Any]) -> Any:
    """`field` with `function` applied to its tensors; the same object where nothing changes."""
    if _is_tensor(field):
        return function(field)
    if not tensors_of(field):
        return field
    made = [function(item) if _is_tensor(item) else item for item in field]
    if all(new is old for new, old in zip(made, field, strict=True)):
        return field
    return type(field)._make(made) if hasattr(field, "_make") else type(field)(made)


def _is_tensor(item: Any) -> bool:
    return hasattr(item, "shape") and hasattr(item, "dtype")


def _is_torch(tensor: Any) -> bool:
    return type(tensor).__module__.partition(".")[0] == "torch"


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _to(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if hasattr(tensor, "to"):
        return tensor.to(*args, **kwargs)
    if not kwargs and all(str(arg) == "cpu" for arg in args):
        return tensor
    raise TypeError(
        "this batch holds NumPy arrays, which live in host memory: install torch to move batches, or unset "
        "FEEDLINE_TENSORS if it says numpy"
    )


def _like(batch: Batch, valid: list[bool]) -> Any:
    tensors = [tensor for field in batch for tensor in tensors_of(field)]
    if any(map(_is_torch, tensors)) or not tensors and framework() == "torch":
        import torch

        return torch.tensor(valid, dtype=torch.bool)
    import numpy

    return numpy.array(valid, dtype=bool)


def _shape(tensor: Any) -> str:
    if isinstance(tensor, tuple):
        return f"({', '.join(map(_shape, tensor))})"
    if isinstance(tensor, list):
        return f"list of {len(tensor)} {type(tensor[0]).__name__ if tensor else ''}"
    if not _is_tensor(tensor):
        return repr(tensor)
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
