"""Visibility and scores of one layer's attention: positions that rows see, and weights from products of q and k."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Scoring"]


@dataclass(frozen=True)
class Scoring:
    """Parameters of `agentkv::update_and_attend` beside the tensors of rows."""

    scale: float
    window: int = 0
    """Number of positions that a row sees, its own included; 0 for all before it."""
    chunk: int = 0
    """Size of chunks: a row sees positions from the start of its chunk on (Llama 4); 0 for no chunks."""
    cap: float = 0.0
    """Cap of scores, which become `cap * tanh(score / cap)` (Gemma 2, 2024); 0 for none."""
    sink_scores: torch.Tensor | None = None
    """Score per head that takes weight without having a value, `[Hq]` (gpt-oss, 2025)."""
    slopes: torch.Tensor | None = None
    """Slope per head, `[Hq]`; a score gains slope * (seen position - row's position) (ALiBi, Press et al. 2021)."""

    @property
    def is_plain(self) -> bool:
        """Whether weights are the softmax of visible, scaled products, and nothing else."""
        return not self.cap and self.sink_scores is None and self.slopes is None

    def visible(self, position: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Mask, bool `[T, N]`: whether rows at `position` `[T]` may see keys at `seen` `[N]`."""
        rows = position[:, None]
        visible = seen <= rows
        if self.window:
            visible &= seen > rows - self.window
        if self.chunk:
            visible &= seen >= rows - rows % self.chunk
        return visible

    def weights(
        self, products: torch.Tensor, position: torch.Tensor, seen: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Weights of values `[Hq, T, N]` from unscaled products q k `[Hq, T, N]`; mask `visible` `[T, N]`."""
        scores = products * self.scale
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        if self.slopes is not None:
            scores = scores + self.slopes[:, None, None] * (seen - position[:, None])
        scores = scores.masked_fill(~visible, float("-inf"))
        if self.sink_scores is None:
            return torch.softmax(scores, dim=-1)
        sinks = self.sink_scores.to(scores.dtype)[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
