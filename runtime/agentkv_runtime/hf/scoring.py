"""How one layer attends: which positions its rows see, and what becomes of products of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Scoring"]


@dataclass(frozen=True)
class Scoring:
    """What `agentkv::update_and_attend` is told beside tensors of rows."""

    scale: float
    window: int = 0
    """Positions that a row sees, its own among them; 0: all before it."""
    chunk: int = 0
    """A row sees from the start of its chunk of so many positions on (Llama 4); 0: from the first position on."""
    cap: float = 0.0
    """A score becomes `cap * tanh(score / cap)` (Gemma 2, 2024); 0: as it is."""
    sink_scores: torch.Tensor | None = None
    """`[Hq]`: a score per head that takes weight and has no value (gpt-oss, 2025)."""
    slopes: torch.Tensor | None = None
    """`[Hq]`: what a score gains per position, times that seen less the row's own (ALiBi, Press et al. 2021)."""

    def visible(self, position: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Bool `[T, N]`: may rows at `position` `[T]` see keys at `seen` `[N]`?"""
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
        """Products of queries and keys `[Hq, T, N]`, not scaled, as weights of values; `visible` `[T, N]`."""
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
