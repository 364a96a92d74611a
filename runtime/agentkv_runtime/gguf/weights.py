"""The weights of a GGUF file under the names of transformers' parameters, as blocks or as numbers."""

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
    """Rows `[O, row_bytes]`, an array or what is made of something as it is taken."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> npt.NDArray[np.uint8]: ...


@dataclass(frozen=True)
class RowBlocks:
    """The rows of a matrix, or of an expert's each, in the file's own blocks."""

    type: int
    """The id that GGUF has for the type of the blocks."""
    shape: tuple[int, ...]
    """`[O, I]`, or of experts `[E, O, I]`: outputs are rows, also where transformers keeps the parameter `[I, O]`."""
    rows: Callable[[], Rows]
    """Brings them, `[O, row_bytes]` or `[E, O, row_bytes]`, in the order of the parameter's outputs."""

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        _, numbers, size = TYPES[self.type]
        return self.shape[-1] // numbers * size


@dataclass(frozen=True)
class Parameter:
    """What a parameter of transformers is made of."""

    parts: tuple[Tensor, ...]
    """Joined by their rows; experts each by theirs."""
    axis: int = -2
    """Which one has the rows: the last of vectors and biases, the last but one of matrices."""
    order: Order | None = None
    """Which of the joined rows is each of the parameter's; None where they are as they come."""
    added: float = 0.0
    """To each number of the file."""
    transposed: bool = False
    """Does transformers keep it `[I, O]`?"""
    shape: tuple[int, ...] | None = None
    """Of transformers' parameter, where the file has another of as many numbers."""

    def blocks(self) -> RowBlocks | None:
        """None for what is no matrix, or of several types."""
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
        """Its value. Raises UnsupportedModelError for blocks that cannot be dequantised."""
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
    """The parameters of a model. Nothing of their values is kept."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters

    def names(self) -> Collection[str]:
        """Of all parameters; of tied ones the first."""
        return self._parameters.keys()

    def blocks(self, name: str) -> RowBlocks | None:
        """The blocks of a matrix; None for vectors, for what is made of several types, and for unknown names."""
        parameter = self._parameters.get(name)
        return None if parameter is None else parameter.blocks()

    def errors(self) -> dict[str, float]:
        """Nothing: blocks are run as they are."""
        return {}

    def floats(self, name: str) -> Floats:
        """The value of a parameter as transformers has it.

        Raises KeyError for a name that there is none of, UnsupportedModelError for blocks that cannot be dequantised.
        """
        return self._parameters[name].numbers()


def numbers_of(tensor: Tensor) -> Floats:
    """A tensor dequantised. Raises UnsupportedModelError for one that cannot be."""
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
