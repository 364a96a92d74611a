"""The plainest cache that the op can attend over: one sequence whose K and V only grow."""

from __future__ import annotations

import torch
from agentkv_runtime.hf.scoring import Scoring
from torch.nn import functional


class GrowingCache:
    """Keeps every layer's K and V; row i sees positions <= its own."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(
        self,
        layer_id: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        position: torch.Tensor,
        scoring: Scoring,
        writes: bool,
    ) -> torch.Tensor:
        assert writes
        if layer_id in self.layers:
            before_k, before_v = self.layers[layer_id]
            k, v = torch.cat((before_k, k), 2), torch.cat((before_v, v), 2)
        self.layers[layer_id] = (k, v)
        at = torch.arange(k.shape[2])
        visible = scoring.visible(position, at)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scoring.scale, enable_gqa=True)
