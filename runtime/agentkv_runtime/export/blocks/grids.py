"""The numbers that a block can hold: its steps and bases as kernels see them, in half precision and 6 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentkv_runtime.export.blocks.fitting import affine_fit, codes_of, symmetric_fit
from agentkv_runtime.export.blocks.kinds import Kind

__all__ = ["Grid", "fit_grid"]

_HALF = 65504.0


@dataclass(frozen=True)
class Grid:
    """Of blocks `[B]` with `G` groups each."""

    kind: Kind
    outer: torch.Tensor
    """float16 `[B, 1]`, or `[B, 2]` where groups have bases: the block's step, and its base."""
    inner: torch.Tensor
    """float32 `[B, G]`, or `[B, G, 2]` where groups have bases: the integers of nested kinds; otherwise ones."""

    @property
    def step(self) -> torch.Tensor:
        """float32 `[B, G]`."""
        inner = self.inner if self.kind.zero is not None else self.inner[..., 0]
        return self.outer[:, :1].float() * inner

    @property
    def base(self) -> torch.Tensor:
        """float32 `[B, G]`."""
        if self.kind.zero is not None:
            return self.step * -self.kind.zero
        signed = self.outer[:, 1:].float() * self.inner[..., 1]
        return -signed if self.kind.nested else signed

    def codes(self, groups: torch.Tensor) -> torch.Tensor:
        """The nearest codes of numbers `[B, G, N]`, as float32."""
        return codes_of(groups, self.step, self.base, self.kind.top)

    def values(self, codes: torch.Tensor) -> torch.Tensor:
        """What codes `[B, G, N]` stand for."""
        return torch.addcmul(self.base[..., None], codes, self.step[..., None])


def _half(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.clamp(-_HALF, _HALF).half()


def _flat(kind: Kind, step: torch.Tensor, base: torch.Tensor) -> Grid:
    if kind.zero is not None:
        return Grid(kind, _half(step), torch.ones_like(step))
    return Grid(kind, _half(torch.cat([step, base], -1)), torch.ones((*step.shape, 2)))


def _nest(kind: Kind, step: torch.Tensor, base: torch.Tensor) -> Grid:
    """Groups' steps and bases as integers times the block's."""
    if kind.zero is not None:
        largest = step.gather(-1, step.abs().argmax(-1, keepdim=True))
        outer = _half(largest / -128)
        return Grid(kind, outer, _over(step, outer).clamp_(-128, 127))
    outer = _half(torch.cat([step.amax(-1, keepdim=True), -base.amin(-1, keepdim=True)], -1) / 63)
    inner = torch.stack([_over(step, outer[:, :1]), _over(-base, outer[:, 1:])], -1)
    return Grid(kind, outer, inner.clamp_(0, 63))


def _over(numbers: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
    wide = outer.float()
    return torch.where(wide == 0, 0.0, numbers / wide).round_()


def _refit_outer(grid: Grid, codes: torch.Tensor, groups: torch.Tensor, weights: torch.Tensor) -> Grid:
    """The grid whose outer numbers fit best, by least squares over blocks, what the codes make of the inner ones."""
    kind = grid.kind
    if kind.zero is not None:
        along = (codes - kind.zero) * grid.inner[..., None]
        squares = (weights * along.square()).sum((-1, -2))
        outer = (weights * along * groups).sum((-1, -2)) / squares
        return Grid(kind, _half(torch.where(squares > 0, outer, 0.0))[:, None], grid.inner)
    along = codes * grid.inner[..., :1]
    across = grid.inner[..., 1:] * (-1 if kind.nested else 1)
    weighted = weights * along
    aa, ag = (weighted * along).sum((-1, -2)), (weighted * groups).sum((-1, -2))
    ab, bb = (weighted * across).sum((-1, -2)), (weights * across.square()).sum((-1, -2))
    bg = (weights * across * groups).sum((-1, -2))
    spread = aa * bb - ab.square()
    solved = spread > 1e-6 * aa * bb
    one = torch.where(solved, (bb * ag - ab * bg) / spread, torch.where(aa > 0, ag / aa, 0.0))
    two = torch.where(solved, (aa * bg - ab * ag) / spread, torch.where(aa > 0, 0.0, bg / bb).nan_to_num_(0.0))
    return Grid(kind, _half(torch.stack([one, two], -1)), grid.inner)


def _error(grid: Grid, groups: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = grid.codes(groups)
    return codes, (grid.values(codes).sub_(groups).square_().mul_(weights)).sum((-1, -2))


def fit_grid(kind: Kind, groups: torch.Tensor, weights: torch.Tensor) -> Grid:
    """The grid of the least weighted squared error that a search finds.

    `groups` and `weights`, float32 `[B, G, N]`: the numbers of blocks, and what the square of an error at each counts.
    """
    if kind.zero is not None:
        step = base = symmetric_fit(groups, weights, kind.top, kind.zero)
    else:
        step, base = affine_fit(groups, weights, kind.top, below=kind.nested)
    grid = _nest(kind, step, base) if kind.nested else _flat(kind, step, base)
    codes, lost = _error(grid, groups, weights)
    again = _refit_outer(grid, codes, groups, weights)
    _, less = _error(again, groups, weights)
    return Grid(kind, torch.where((less < lost)[:, None], again.outer, grid.outer), grid.inner)
