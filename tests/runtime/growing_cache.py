"""The plainest cache that the op can attend over: one sequence whose K and V only grow."""

from __future__ import annotations

import torch
from agentkv_runtime.hf.scoring import Scoring


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
        if writes:
            before = self.layers.get(layer_id)
            if before is not None:
                k, v = torch.cat((before[0], k), 2), torch.cat((before[1], v), 2)
            self.layers[layer_id] = (k, v)
        keys, values = (each[0].repeat_interleave(q.shape[1] // each.shape[1], 0) for each in self.layers[layer_id])
        at = torch.arange(keys.shape[1])
        weights = scoring.weights(q[0] @ keys.mT, position, at, scoring.visible(position, at))
        return (weights @ values)[None]
