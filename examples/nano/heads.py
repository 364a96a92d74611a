"""Start the model with the pair of heads that copies, instead of waiting for them to form.

Copying what followed the same token earlier takes two heads in a row: one that looks at the token
before, and one that looks for places whose token before equals the current token. From random weights
that pair forms late and all at once, after many times the tokens that the rest of this task needs. Here
both are written into the first two layers; training is free to move them, and decides what to copy.
"""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

CONSTANT = 8  # dimensions of the embedding that start equal for every token, for heads that see position only
ROPE_THETA = 10000.0
FIRST_SLOW = 14  # rotary pairs from here on turn slowly enough to compare tokens far apart


@torch.no_grad()
def plant(model: LlamaForCausalLM, seed: int) -> None:
    """Write the two heads into layers 0 and 1, and let every other block start by adding nothing."""
    config, layers = model.config, model.model.layers
    width, dim = config.hidden_size, config.hidden_size // config.num_attention_heads
    generator = torch.Generator().manual_seed(seed)
    embedding = model.model.embed_tokens.weight
    # Tokens start well apart, so that a match between two of them stands out.
    embedding.normal_(std=0.1, generator=generator)
    embedding[:, :CONSTANT] = 0.2
    for layer in layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    basis = torch.linalg.qr(torch.randn(width - CONSTANT, width - CONSTANT, generator=generator)).Q
    own, before, copied = (torch.zeros(dim, width) for _ in range(3))
    for index, rows in enumerate((own, before, copied)):
        rows[:, CONSTANT:] = basis[index * dim : (index + 1) * dim]

    # Layer 0, head 0: the key's fast rotary pairs are turned by one position, so the last token wins.
    half = dim // 2
    speed = ROPE_THETA ** (-torch.arange(0, half) / half)
    fast = speed > 0.2
    strength = 60.0**0.5 / (CONSTANT * 0.2 / float(embedding.square().mean(1).sqrt().mean()))
    query, key = torch.zeros(dim), torch.zeros(dim)
    query[:half][fast] = strength
    key[:half][fast] = strength * speed[fast].cos()
    key[half:][fast] = strength * speed[fast].sin()
    first = layers[0].self_attn
    for projection, values in ((first.q_proj, query), (first.k_proj, key)):
        projection.weight[:dim] = 0
        projection.weight[:dim, :CONSTANT] = values[:, None]
    first.v_proj.weight[:dim] = own
    first.o_proj.weight[:, :dim] = 0.2 * before.T

    # Layer 1, head 0: the current token is compared with what layer 0 wrote about the token before.
    second = layers[1].self_attn
    slow = (torch.arange(dim) % half >= FIRST_SLOW)[:, None]
    second.q_proj.weight[:dim] = 2.3 * own * slow
    second.k_proj.weight[:dim] = 2.3 * before * slow
    second.v_proj.weight[:dim] = copied
    second.o_proj.weight[:, :dim] = 1.0 * copied.T
