"""Steps and bases of groups of numbers, by weighted least squares over what rounding leaves."""

from __future__ import annotations

import torch

__all__ = ["affine_fit", "codes_of", "symmetric_fit"]

Pair = tuple[torch.Tensor, torch.Tensor]

# The code that the extreme number of a group gets, as a part of the outermost: below 1 there is room, above it the
# number is clipped. More codes need fewer tries.
_REACHES = {
    15: (1.0, 0.84, 0.88, 0.92, 0.96, 1.04, 1.09, 1.14, 1.2),
    31: (1.0, 0.94, 0.97, 1.03, 1.07),
    63: (1.0, 0.97, 1.03),
}
_WHOLE = (1.0,)
# What is left out of a group's range at its low and its high end, in parts of a step.
_MARGINS = {15: (0.0, 0.35, 0.8), 31: (0.0, 0.5)}


def codes_of(numbers: torch.Tensor, step: torch.Tensor, base: torch.Tensor, top: int) -> torch.Tensor:
    """The codes, as float32, of numbers `[..., N]` under steps and bases `[...]`; 0 where the step is 0."""
    inverse = torch.where(step == 0, 0.0, 1 / step)
    return ((numbers - base[..., None]) * inverse[..., None]).round_().clamp_(0, top)


def symmetric_fit(numbers: torch.Tensor, weights: torch.Tensor, top: int, zero: int) -> torch.Tensor:
    """Steps `[...]`, of either sign, for groups `[..., N]` whose code `zero` is 0: the best of several, refitted."""
    at = numbers.abs().argmax(-1, keepdim=True)
    extreme = numbers.gather(-1, at).squeeze(-1)
    weighted = weights * numbers
    best, most = torch.zeros_like(extreme), torch.zeros_like(extreme)
    for bound in (-zero, top - zero):
        for reach in _REACHES.get(top, _WHOLE):
            step = extreme / (bound * reach)
            codes = (numbers * torch.where(step == 0, 0.0, 1 / step)[..., None]).round_().clamp_(-zero, top - zero)
            along, squares = (weighted * codes).sum(-1), (weights * codes.square()).sum(-1)
            gained = along.square() / squares
            better = gained > most
            best, most = torch.where(better, along / squares, best), torch.where(better, gained, most)
    return best


def affine_fit(numbers: torch.Tensor, weights: torch.Tensor, top: int, below: bool) -> Pair:
    """Steps and bases `[...]` for groups `[..., N]`: the best of several, refitted; `below`: no base is above 0."""
    low, high = numbers.amin(-1), numbers.amax(-1)
    if below:
        low = low.clamp(max=0)
    weighted = weights * numbers
    sums = weights.sum(-1), weighted.sum(-1)
    step, base = (high - low) / top, low
    least = torch.full_like(low, torch.inf)
    for left in _MARGINS[top]:
        for right in _MARGINS[top]:
            tried = (high - low) / (top + left + right)
            codes = codes_of(numbers, tried, low + left * tried, top)
            found = _refit(codes, weights, weighted, sums, below)
            better = found[2] < least
            step, base = torch.where(better, found[0], step), torch.where(better, found[1], base)
            least = torch.where(better, found[2], least)
    return step, base


def _refit(
    codes: torch.Tensor, weights: torch.Tensor, weighted: torch.Tensor, sums: Pair, below: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The step and the base of the least error for given codes, and that error beside the numbers' own squares."""
    ones, along_ones = sums
    coded = weights * codes
    codes_ones, squares, along = coded.sum(-1), (coded * codes).sum(-1), (weighted * codes).sum(-1)
    spread = ones * squares - codes_ones.square()
    flat = spread <= 1e-6 * ones * squares
    step = torch.where(flat, 0.0, (ones * along - codes_ones * along_ones) / spread)
    base = torch.where(ones > 0, (along_ones - step * codes_ones) / ones, 0.0)
    if below:
        through = base > 0
        step = torch.where(through, torch.where(squares > 0, along / squares, 0.0), step)
        base = base.clamp(max=0)
    lost = step * (step * squares - 2 * along + 2 * base * codes_ones) + base * (base * ones - 2 * along_ones)
    return step, base, lost
