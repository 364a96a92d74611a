"""Training-time test: a draft head is trained on its own outputs, as it will run (Li et al. 2025, arXiv 2503.01840).

A rollout starts at a position p before which the target has run everything. Level 0 takes token p + 1 and the target's
features at p; level j takes token p + j + 1 and what the head itself gave out at level j - 1. Each level sees the
entries of the target up to p, and the rollout's own ones since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from agentkv_runtime.export.draft_head import DraftHead
from torch import Tensor

from .batches import Batch


@dataclass(frozen=True)
class Starts:
    """Where the rollouts of a batch start: before every token that the assistant says but the first of a turn."""

    at: Tensor
    """Positions `[rows, M]`, padded."""
    valid: Tensor
    """Whether level j predicts a token of the same turn, `[levels, rows, M]`."""

    @classmethod
    def of(cls, batch: Batch, levels: int) -> Starts:
        """The starts of a batch."""
        spoken = torch.from_numpy(batch.spoken)
        length = spoken.shape[1]
        padded = torch.cat((spoken, torch.zeros_like(spoken[:, : levels + 2])), 1)
        going = padded[:, 1 : length + 1]  # token p + 1 is the assistant's
        runs = []
        for level in range(levels):
            going = going & padded[:, level + 2 : level + 2 + length]
            runs.append(going)
        order = torch.argsort(~runs[0], dim=1, stable=True)[:, : int(runs[0].sum(1).max())]
        return cls(order, torch.stack([run.gather(1, order) for run in runs]))


def rollout(head: DraftHead, tokens: Tensor, features: Tensor, starts: Starts) -> Iterator[Tensor]:
    """tokens `[rows, length]` and the target's features `[rows, length, F]` -> per level, hidden `[rows, M, H]`."""
    layer, config = head.midlayer, head.config
    dim, kv_heads = config.head_dim, config.num_key_value_heads
    share = config.num_attention_heads // kv_heads
    rows, length = tokens.shape
    embedded = head.embed_tokens(torch.nn.functional.pad(tokens, (0, 1)))

    first = torch.arange(rows)[:, None]

    def at(source: Tensor, position: Tensor) -> Tensor:
        flat = (first * source.shape[1] + position).flatten()
        return source.flatten(0, 1).index_select(0, flat).view(*position.shape, -1)

    def heads(x: Tensor, count: int, position: Tensor | None) -> Tensor:
        x = x.view(*x.shape[:2], count, dim).transpose(1, 2)
        return x if position is None else _turned(x, position, head.inv_freq)

    fused = head.fuse(features)
    everywhere = torch.arange(length).expand(rows, length)
    mixed = layer.mix(embedded[:, 1:], fused)
    keys = heads(layer.self_attn.k_proj(mixed), kv_heads, everywhere).flatten(0, 1)
    values = heads(layer.self_attn.v_proj(mixed), kv_heads, None).flatten(0, 1)
    unseen = everywhere[:, None, :] > starts.at[..., None]
    bias = torch.zeros(unseen.shape, dtype=keys.dtype).masked_fill_(unseen, float("-inf"))
    bias = bias[:, None, None].expand(-1, kv_heads, share, -1, -1).reshape(rows * kv_heads, -1, length)

    hidden, mixed = at(fused, starts.at), at(mixed, starts.at)
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    for level in range(len(starts.valid)):
        position = starts.at + level
        if level:
            mixed = layer.mix(at(embedded, (position + 1).clamp(max=length)), hidden)
            own_keys.append(heads(layer.self_attn.k_proj(mixed), kv_heads, position)[:, :, None])
            own_values.append(heads(layer.self_attn.v_proj(mixed), kv_heads, None)[:, :, None])
        queries = heads(layer.self_attn.q_proj(mixed), kv_heads * share, position) * dim**-0.5
        queries = queries.view(rows, kv_heads, share, -1, dim)
        # Softmax over both parts without joining them: copies of this size took as long as the products.
        scores = torch.baddbmm(bias, queries.reshape(rows * kv_heads, -1, dim), keys.transpose(1, 2))
        own = [(queries * key).sum(-1, keepdim=True) for key in own_keys]
        most = scores.detach().amax(-1, keepdim=True).view(*queries.shape[:-1], 1)
        for score in own:
            most = torch.maximum(most, score.detach())
        weights = (scores - most.view(rows * kv_heads, -1, 1)).exp()
        out = torch.bmm(weights, values).view(queries.shape)
        total = weights.sum(-1, dtype=torch.float32).view(*queries.shape[:-1], 1)
        for score, value in zip(own, own_values, strict=True):
            weight = (score - most).exp()
            out, total = out + weight * value, total + weight
        out = (out / total).to(values.dtype)
        attended = out.view(rows, kv_heads * share, -1, dim).transpose(1, 2).flatten(2)
        hidden = layer.finish(attended, hidden)
        yield hidden


def _turned(x: Tensor, position: Tensor, inv_freq: Tensor) -> Tensor:
    """Rotary embedding of x `[rows, heads, T, D]` at position `[rows, T]`."""
    angles = position[:, None, :, None] * inv_freq
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
