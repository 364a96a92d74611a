"""A hybrid of nano's size: half of its attention layers replaced by Mamba-2, in transformers' Bamba."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import BambaConfig, BambaForCausalLM, GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.bamba import modeling_bamba

from .heads import ROPE_THETA

ATTENDS = (0, 1)  # the layers that stay attention: the pair that copies is in them
CHUNK = 64
_NAMES = {
    "mlp.": "feed_forward.",
    "post_attention_layernorm.": "pre_ff_layernorm.",
    "model.norm.": "model.final_layernorm.",
}


def build(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> BambaForCausalLM:
    """A freshly initialised hybrid for `tokenizer`."""
    torch.manual_seed(seed)
    config = BambaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_indices=[*ATTENDS],
        mamba_expand=2,
        mamba_n_heads=8,
        mamba_d_state=64,
        mamba_chunk_size=CHUNK,
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": 1.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = BambaForCausalLM(config)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, max_new_tokens=256
    )
    return model


@torch.no_grad()
def graft(model: BambaForCausalLM, nano: Path) -> None:
    """Take from nano's weights all that both have; the Mamba-2 layers start by adding nothing."""
    mine = model.state_dict()
    for name, tensor in LlamaForCausalLM.from_pretrained(nano, dtype=torch.float32).state_dict().items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        if name in mine:
            mine[name].copy_(tensor)
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.mamba.out_proj.weight.zero_()


def scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int, D: Tensor, dt_bias: Tensor, **_: Any
) -> Tensor:
    """What `mamba2_chunk_scan` computes for one group without a cache: x `[B, T, H, P]`, b and c `[B, T, 1, N]`.

    All heads share the products of b and c, so chunks are batched products and no five-dimensional sums.
    """
    batch, length, heads, width = x.shape
    padding, states = -length % chunk_size, b.shape[-1]
    count = (length + padding) // chunk_size
    dt = functional.softplus(dt.float() + dt_bias)

    def chunks(rows: Tensor, size: int) -> Tensor:
        """`[B, T, heads of them, size]` -> `[B, chunks, heads of them, chunk_size, size]`."""
        padded = functional.pad(rows, (0, 0, 0, 0, 0, padding))
        return padded.view(batch, count, chunk_size, -1, size).transpose(2, 3)

    values = chunks(x * dt[..., None], width)
    keys, queries = chunks(b, states), chunks(c, states)
    sums = chunks((a * dt)[..., None], 1).squeeze(-1).cumsum(-1)  # [B, chunks, H, chunk_size]
    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool).triu(1)
    decay = (sums[..., :, None] - sums[..., None, :]).masked_fill(later, float("-inf")).exp()
    within = (queries @ keys.mT * decay) @ values
    ends = keys.mT @ (values * (sums[..., -1:] - sums).exp()[..., None])  # [B, chunks, H, N, P]
    fades = sums[..., -1].exp()[..., None, None]
    state, before = torch.zeros_like(ends[:, 0]), []
    for index in range(count):
        before.append(state)
        state = state * fades[:, index] + ends[:, index]
    across = (queries @ torch.stack(before, 1)) * sums.exp()[..., None]
    out = (within + across).transpose(2, 3).reshape(batch, -1, heads, width)[:, :length]
    return out + D[:, None] * x


def convolve(x: Tensor, weight: Tensor, bias: Tensor, activation: str, **_: Any) -> Tensor:
    """What `causal_conv1d_fn` computes: x `[B, C, T]`, weight `[C, W]`, and SiLU."""
    taps = weight.shape[1]
    padded = functional.pad(x.transpose(1, 2), (0, 0, taps - 1, 0))
    mixed = bias + sum(padded[:, tap : tap + x.shape[2]] * weight[:, tap] for tap in range(taps))
    return functional.silu(mixed).transpose(1, 2)


def use_fast_layers() -> None:
    """Let Bamba train with the two functions above, 1.9 times as fast; what it computes without a cache is the same."""
    modeling_bamba.mamba2_chunk_scan = scan
    modeling_bamba.causal_conv1d_fn = convolve
