"""Weights of a GGUF file under transformers' names, as blocks or as floats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.gguf.block_types import BF16, F16, F32, TYPES
from agentkv_runtime.gguf.file import Tensor

__all__ = ["Parameter", "RowBlocks", "Rows", "Weights", "numbers_of"]

Floats = npt.NDArray[np.float32]
Order = npt.NDArray[np.intp]
_T = TypeVar("_T", np.uint8, np.float32)


class Rows(Protocol):
    """Rows `[O, row_bytes]`: an array, or an object that makes slices of rows on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> npt.NDArray[np.uint8]: ...


@dataclass(frozen=True)
class RowBlocks:
    """The rows of a matrix, or of a stack of experts' matrices, in the file's own blocks."""

    type: int
    """GGUF's id of the block type."""
    shape: tuple[int, ...]
    """`[O, I]`, for experts `[E, O, I]`: rows are outputs even if transformers' parameter is `[I, O]`."""
    rows: Callable[[], Rows]
    """Returns the rows, `[O, row_bytes]` or `[E, O, row_bytes]`, in the order of the parameter's outputs."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        _, numbers, size = TYPES[self.type]
        return self.shape[-1] // numbers * size


@dataclass(frozen=True)
class Parameter:
    """Tensors of the file, and the steps that turn them into a parameter of transformers."""

    parts: tuple[Tensor, ...]
    """Tensors whose rows are concatenated, of stacked experts each expert's rows."""
    axis: int = -2
    """Axis of the rows: -1 for vectors and biases, -2 for matrices."""
    order: Order | None = None
    """Index among the concatenated rows of each row of the parameter; None for the same order."""
    added: float = 0.0
    """Term that is added to each number of the file."""
    transposed: bool = False
    """Whether transformers' parameter is `[I, O]`."""
    shape: tuple[int, ...] | None = None
    """Shape of transformers' parameter, if the file has another one of equal size."""

    def blocks(self) -> RowBlocks | None:
        """The parameter in the file's blocks; None for vectors, changed values, and tensors of several types."""
        first = self.parts[0]
        if self.shape is not None and self.shape == (1, *first.shape):  # a vector that is a matrix of one row
            return RowBlocks(first.type, self.shape, lambda: first.data[None])
        if self.axis != -2 or self.shape is not None or self.added:
            return None
        if {part.type for part in self.parts} != {first.type}:
            return None
        outputs = sum(part.shape[-2] for part in self.parts) if self.order is None else len(self.order)
        shape = (*first.shape[:-2], outputs, first.shape[-1])
        return RowBlocks(first.type, shape, lambda: self._joined([part.data for part in self.parts]))

    def numbers(self) -> Floats:
        """The value, float32 in transformers' shape. Raises UnsupportedModelError for blocks of an unknown type."""
        value = self._joined([numbers_of(part) for part in self.parts])
        if self.added:
            value = value + np.float32(self.added)
        if self.transposed:
            value = value.swapaxes(-1, -2)
        value = np.ascontiguousarray(value)
        return value if self.shape is None else value.reshape(self.shape)

    def _joined(self, parts: list[npt.NDArray[_T]]) -> npt.NDArray[_T]:
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)
        return whole if self.order is None else whole.take(self.order, self.axis)


class Weights:
    """The parameters of a model by name, read from the file on every call."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters

    def names(self) -> Collection[str]:
        """Names of all parameters; of tied ones the first."""
        return self._parameters.keys()

    def blocks(self, name: str) -> RowBlocks | None:
        """The blocks of a matrix; None for vectors, changed values, tensors of several types, and unknown names."""
        parameter = self._parameters.get(name)
        return None if parameter is None else parameter.blocks()

    def errors(self) -> dict[str, float]:
        """Always empty: blocks are run as they are, without quantisation errors."""
        return {}

    def floats(self, name: str) -> Floats:
        """The value of a parameter, float32 in transformers' shape.

        Raises KeyError for an unknown name, UnsupportedModelError for blocks that cannot be dequantised.
        """
        return self._parameters[name].numbers()


def numbers_of(tensor: Tensor) -> Floats:
    """Dequantises a tensor to float32. Raises UnsupportedModelError for a block type that cannot be dequantised."""
    flat = tensor.data.reshape(-1)
    if tensor.type == F32:
        return flat.view(np.float32).reshape(tensor.shape)
    if tensor.type == F16:
        return flat.view(np.float16).astype(np.float32).reshape(tensor.shape)
    if tensor.type == BF16:
        return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    from gguf import GGMLQuantizationType, dequantize

    try:
        numbers: Floats = dequantize(tensor.data, GGMLQuantizationType(tensor.type))
    except (NotImplementedError, ValueError) as error:
        raise UnsupportedModelError(
            f"{tensor.name} is {TYPES[tensor.type].name}, which cannot be dequantised: {error}"
        ) from error
    return numbers.reshape(tensor.shape)
