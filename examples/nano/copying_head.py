"""Start a draft head with copying already in place, as `heads.py` does for the model itself.

What follows a token is mostly what followed it before. A draft head needs one attention layer for that: its keys hold
the target's features at r and the embedding of token r + 1, so a query that finds the same token at r reads what came
next. Both are written in before training, with projections of the features fitted by least squares.
"""

from __future__ import annotations

import torch
from agentkv_runtime.export.draft_head import DraftHead
from torch import Tensor

from .batches import Batches
from .heads import FIRST_SLOW
from .target import Target

KNOWN = 88  # dimensions of the hidden state for the token at a position, and as many for the one before
SHARPNESS = 1.6  # of the match: about 12 between equal tokens once scaled
LOUDNESS = 3.0  # of what is copied, beside the hidden state


def _unit(x: Tensor) -> Tensor:
    return x * x.square().mean(-1, keepdim=True).clamp_min(1e-9).rsqrt()


@torch.no_grad()
def plant(head: DraftHead, target: Target, batches: Batches, seed: int, samples: int = 6) -> None:
    """Write the matches and the copying into `head`, from what `target` makes of a few batches."""
    width, dim = head.config.hidden_size, head.config.head_dim
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
    known, before, rest = basis[:KNOWN], basis[KNOWN : 2 * KNOWN], basis[2 * KNOWN :]
    token = _unit(target.embedding) @ known.T

    # Hidden state: the token at p, the one before it, and the target's own guess of the next.
    gram, moment = 0.0, 0.0
    for _ in range(samples):
        batch = batches.take(0.0)
        tokens = torch.from_numpy(batch.tokens)
        features, last = target.run(tokens)
        wanted = token[tokens] @ known + token[tokens.roll(1, 1)] @ before + _unit(last.float()) @ rest.T @ rest
        chosen = torch.from_numpy(~batch.padding)
        x, y = features[chosen], wanted[chosen]
        gram, moment = gram + x.T @ x, moment + x.T @ y
    ridge = 1e-3 * gram.diagonal().mean() * torch.eye(head.feature_dim)
    head.fc.weight.copy_(torch.linalg.solve(gram + ridge, moment).T)

    # Keys match the current token; those of the second K/V head also the one before, in half of their dimensions.
    layer = head.midlayer.self_attn
    half = dim // 2
    slow = (torch.arange(dim) % half >= FIRST_SLOW).nonzero().squeeze(1)
    match = SHARPNESS * torch.linalg.qr(torch.randn(KNOWN, len(slow), generator=generator)).Q.T @ known
    match_before = match @ known.T @ before
    share = head.config.num_attention_heads // head.config.num_key_value_heads
    for index in range(2):
        rows = index * dim + slow
        queries = index * share * dim + slow
        for projection, chosen_rows in ((layer.q_proj, queries), (layer.k_proj, rows)):
            start = int(chosen_rows[0]) // dim * dim
            projection.weight[start : start + dim] = 0
        layer.q_proj.weight[queries, :width] = match
        layer.k_proj.weight[rows, width:] = match
        if index == 1:
            second = slice(1, None, 2)
            layer.q_proj.weight[queries[second]] = torch.cat((0 * match, match), 1)[second]
            layer.k_proj.weight[rows[second], width:] = match_before[second]
        copied = basis[index * dim : (index + 1) * dim]
        layer.v_proj.weight[index * dim : (index + 1) * dim] = torch.cat((copied, 0 * copied), 1)
        start = index * share * dim
        layer.o_proj.weight[:, start : start + dim] = LOUDNESS * copied.T
