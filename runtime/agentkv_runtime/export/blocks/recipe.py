"""Which block type each weight gets: as little loss as the bytes allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from agentkv_runtime.export.blocks.grids import fit_grid
from agentkv_runtime.export.blocks.kinds import KINDS
from agentkv_runtime.export.blocks.rows import relative_importance
from agentkv_runtime.export.quantization import QuantizationError
from agentkv_runtime.export.threads import one_thread

__all__ = ["BITS", "Bits", "Choice", "budget_of", "choices_of", "choose_kinds"]

_SAMPLE = 1 << 17  # numbers of a weight that its choices are tried on


@dataclass(frozen=True)
class Bits:
    """Bits per number that a model may take on average, by what its weights are."""

    nested: float
    """Of layers whose rows are multiples of 256."""
    flat: float
    """Of others, whose kinds are of 32 numbers."""
    nested_head: float
    """Of the head, or of the embedding that is tied to it."""
    flat_head: float


BITS: dict[str, Bits] = {
    "q4": Bits(4.8, 5.5, 6.5625, 8.5),
    "q5": Bits(5.6, 6.0, 6.5625, 8.5),
    "q6": Bits(6.5625, 7.0, 6.5625, 8.5),
    "q8": Bits(8.5, 8.5, 8.5, 8.5),
}
"""By `--quant`. That of q4 is never above what llama.cpp's Q4_K_M takes, which spends more where 256 does not fit."""


@dataclass(frozen=True)
class Choice:
    """One kind for one weight."""

    kind: str
    size: int
    """Bytes of the weight."""
    loss: float
    """What the model's loss rises by, as `Importance` predicts it."""


def budget_of(shapes: Mapping[str, tuple[int, int]], heads: Iterable[str], quant: str) -> int:
    """The bytes that weights `[O, I]` may take together; `heads` names those that make logits."""
    bits, total, large = BITS[quant], 0.0, set(heads)
    for name, (outputs, inputs) in shapes.items():
        nested = inputs % 256 == 0
        if name in large:
            each = bits.nested_head if nested else bits.flat_head
        else:
            each = bits.nested if nested else bits.flat
        total += outputs * inputs * each / 8
    return int(total)


@one_thread()
def choices_of(
    weight: torch.Tensor, inputs: torch.Tensor | None = None, outputs: torch.Tensor | None = None
) -> list[Choice]:
    """What each kind that fits a weight `[O, I]` takes and costs, tried on rows taken evenly from it.

    `inputs` `[I]` and `outputs` `[O]` are an `Importance`'s; without them every error counts the same.
    """
    height, width = weight.shape
    stride = -(-weight.numel() // _SAMPLE)
    rows = weight[::stride].detach().float()
    counts = relative_importance(inputs, width)
    squares = torch.ones(width) if inputs is None else inputs
    gradients = torch.ones(height) if outputs is None else outputs
    # Gradients differ by orders between the rows of a head, their errors hardly: few rows say what the others lose.
    tried = gradients[::stride] if gradients[::stride].any() else torch.ones(len(rows))
    scale = float(gradients.sum() / tried.sum())
    found = []
    for of in KINDS.values():
        if width % of.block:
            continue
        groups = rows.reshape(-1, of.block // of.group, of.group)
        grid = fit_grid(of, groups, counts.expand_as(rows).reshape(groups.shape))
        errors = (grid.values(grid.codes(groups)).view_as(rows) - rows).square_()
        loss = float(tried @ errors @ squares) / 2 * scale
        found.append(Choice(of.name, height * of.row_bytes(width), loss))
    return found


def choose_kinds(choices: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, str]:
    """The kind of each weight, by name: all begin with the fewest bytes, and what gains most per byte goes first.

    Raises QuantizationError where even the fewest bytes are above the budget, or a weight has no choice.
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


def _gain(before: Choice, after: Choice) -> float:
    return (before.loss - after.loss) / (after.size - before.size)


def _hull(name: str, found: Sequence[Choice]) -> list[Choice]:
    """The choices by size of which each gains less per byte than the one before."""
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
