"""Choice of each weight's block type, for the least loss within a budget of bytes. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from agentkv_runtime._core import unpack_blocks
from agentkv_runtime.errors import QuantizationError
from agentkv_runtime.export.blocks.kinds import KINDS
from agentkv_runtime.export.blocks.rows import TYPE_IDS, Floats, Numbers, quantize_rows

__all__ = ["BITS", "FITS_ALL", "Bits", "Candidate", "Choice", "budget_of", "choices_of", "choose_kinds", "plan_kinds"]

FITS_ALL = "bf16"
"""Kind of weights that fit no blocks."""
_NARROWEST = 32  # numbers of the smallest blocks
_LEAST, _MOST = 1e-3, 3e4  # of a weight's largest number: steps are halves, and parts of them
_SAMPLE = 1 << 17  # numbers of a weight that its choices are tried on
_TOGETHER = 1 << 20  # numbers that are looked through at a time


@dataclass(frozen=True)
class Bits:
    """Bits per number that a model may take on average, by what its weights are."""

    nested: float
    """Bits for layers whose rows are multiples of 256."""
    flat: float
    """Bits for other layers, whose blocks have 32 numbers."""
    nested_head: float
    """Bits for the head, or for the embedding tied to it, if its rows are multiples of 256."""
    flat_head: float


BITS: dict[str, Bits] = {
    "q4": Bits(4.8, 5.5, 6.5625, 8.5),
    "q5": Bits(5.6, 6.0, 6.5625, 8.5),
    "q6": Bits(6.5625, 7.0, 6.5625, 8.5),
    "q8": Bits(8.5, 8.5, 8.5, 8.5),
}
"""Budgets by `--quant`. That of q4 is at most llama.cpp's Q4_K_M, which spends more where 256 does not divide rows."""


class Matrix(Protocol):
    """Numbers of a weight `[O, I]`: an array, or an object that reads rows on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`(O, I)`."""

    def __getitem__(self, rows: slice, /) -> Numbers:
        """Reads a slice of rows."""


@dataclass(frozen=True)
class Candidate:
    """A weight whose kind is to be chosen."""

    shape: tuple[int, int]
    numbers: Callable[[], Matrix]
    """Loads the numbers, `[O, I]`."""
    is_head: bool
    """Whether the weight makes the logits."""
    counts: float = 1.0
    """Cost of an error's square relative to other weights."""
    inputs: Floats | None = None
    """`Importance.inputs` of the weight, `[I]`."""
    outputs: Floats | None = None
    """`Importance.outputs` of the weight, `[O]`."""


@dataclass(frozen=True)
class Choice:
    """One kind for one weight."""

    kind: str
    size: int
    """Bytes of the weight."""
    loss: float
    """Predicted rise of the model's loss; see `Importance`."""


def plan_kinds(weights: Mapping[str, Candidate], quant: str) -> dict[str, str]:
    """The kind of each weight, by name, for one of `BITS`.

    Weights whose rows are no multiple of 32, or whose numbers are far from 1, become bfloat16, which the budget does
    not count. Raises QuantizationError if no kinds keep to the budget, and for numbers that are not finite.
    """
    kinds, choices = {}, {}
    for name, weight in weights.items():
        numbers = weight.numbers()
        if not _fits(name, numbers):
            kinds[name] = FITS_ALL
            continue
        found = choices_of(numbers, weight.inputs, weight.outputs)
        choices[name] = [replace(each, loss=each.loss * weight.counts) for each in found]
    shapes = {name: weights[name].shape for name in choices}
    heads = [name for name in choices if weights[name].is_head]
    return kinds | choose_kinds(choices, budget_of(shapes, heads, quant))


def budget_of(shapes: Mapping[str, tuple[int, int]], heads: Iterable[str], quant: str) -> int:
    """Bytes that weights `[O, I]` may take together; `heads` names those that make logits."""
    bits, total, large = BITS[quant], 0.0, set(heads)
    for name, (outputs, inputs) in shapes.items():
        nested = inputs % 256 == 0
        if name in large:
            each = bits.nested_head if nested else bits.flat_head
        else:
            each = bits.nested if nested else bits.flat
        total += outputs * inputs * each / 8
    return int(total)


def choices_of(numbers: Matrix, inputs: Floats | None = None, outputs: Floats | None = None) -> list[Choice]:
    """Size and loss of each kind that fits a weight `[O, I]`, estimated by quantising evenly spaced rows.

    `inputs` `[I]` and `outputs` `[O]` are those of `Importance`; without them every error counts the same.
    """
    height, width = numbers.shape
    stride = -(-height * width // _SAMPLE)
    rows = np.ascontiguousarray(numbers[::stride])
    floats = _floats(rows)
    squares = np.ones(width, np.float32) if inputs is None else inputs
    gradients = np.ones(height, np.float32) if outputs is None else outputs
    # Gradients differ by orders between the rows of a head, their errors hardly: few rows say what the others lose.
    tried = gradients[::stride] if gradients[::stride].any() else np.ones(len(rows), np.float32)
    scale = float(gradients.sum(dtype=np.float64) / tried.sum(dtype=np.float64))
    found = []
    for of in KINDS.values():
        if width % of.block:
            continue
        packed = quantize_rows(rows, of.name, inputs).rows
        errors = np.square(unpack_blocks(packed, TYPE_IDS[of.name]) - floats)
        loss = float(tried @ (errors @ squares)) / 2 * scale
        found.append(Choice(of.name, height * of.row_bytes(width), loss))
    return found


def choose_kinds(choices: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, str]:
    """The kind of each weight, by name. Begins with the smallest kinds, then takes the steps that gain most per byte.

    Raises QuantizationError if the smallest kinds exceed the budget, or if a weight has no choice.
    """
    hulls = {name: _hull(name, found) for name, found in choices.items()}
    chosen = {name: hull[0] for name, hull in hulls.items()}
    left = budget - sum(choice.size for choice in chosen.values())
    if left < 0:
        raise QuantizationError(f"the weights take {budget - left} bytes at least, and {budget} are allowed")
    steps = [(name, *pair) for name, hull in hulls.items() for pair in pairwise(hull)]
    for name, before, after in sorted(steps, key=lambda step: _gain(step[1], step[2]), reverse=True):
        if chosen[name] is before and after.size - before.size <= left:
            chosen[name] = after
            left -= after.size - before.size
    return {name: choice.kind for name, choice in chosen.items()}


def _fits(name: str, numbers: Matrix) -> bool:
    """Whether blocks divide the rows and their scales reach the numbers. Raises QuantizationError for NaN or inf."""
    largest = _largest(numbers)
    if not np.isfinite(largest):
        raise QuantizationError(f"{name} holds infinities or NaN: its file is broken. Download it again")
    return not numbers.shape[1] % _NARROWEST and (not largest or _LEAST <= largest <= _MOST)


def _largest(numbers: Matrix) -> float:
    """Largest magnitude; NaN if any number is."""
    height, width = numbers.shape
    step = max(1, _TOGETHER // width)
    return float(np.max([_magnitude(numbers[at : at + step]) for at in range(0, height, step)]))


def _magnitude(numbers: Numbers) -> np.float32:
    """Largest magnitude of some rows, compared as integers: without the sign, bits of floats have the same order."""
    bits = numbers.view(f"uint{8 * numbers.itemsize}")
    unsigned = np.array((1 << (8 * numbers.itemsize - 1)) - 1, bits.dtype)
    most: np.float32 = _floats(np.array([(bits & unsigned).max()]).view(numbers.dtype))[0]
    return most


def _floats(numbers: Numbers) -> Floats:
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32, copy=False)


def _gain(before: Choice, after: Choice) -> float:
    return (before.loss - after.loss) / (after.size - before.size)


def _hull(name: str, found: Sequence[Choice]) -> list[Choice]:
    """Choices on the lower convex hull of loss over size, by size: each gains less per byte than the one before."""
    if not found:
        raise QuantizationError(f"{name}: no kind fits its rows, which must be multiples of 32 numbers")
    hull: list[Choice] = []
    for choice in sorted(found, key=lambda choice: (choice.size, choice.loss)):
        if hull and choice.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-1], choice) >= _gain(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return hull
