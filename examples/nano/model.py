"""The nano architecture, and what training adds to it: fast short-sequence attention and int4 rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    BambaForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from .heads import ROPE_THETA, plant

Model = LlamaForCausalLM | BambaForCausalLM

INT4_GROUP = 32
QUERY_BLOCK = 256  # keys after a block of queries are never multiplied
BFLOAT16 = torch.cpu._is_avx512_bf16_supported()  # products in it are emulated, and slow, on other CPUs


def build(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    """A freshly initialised model for `tokenizer`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    plant(model, seed)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, max_new_tokens=256
    )
    return model


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Causal attention as two batched products over K/V heads.

    On a CPU the fused kernel's backward pass took a quarter of each step at these short lengths; this did not.
    """
    batch, heads, length, dim = query.shape
    groups, share = key.shape[1], heads // key.shape[1]
    queries = query.reshape(batch * groups, share, length, dim)
    keys, values = (x.reshape(batch * groups, length, dim) for x in (key, value))
    mixed = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        rows = queries[:, :, start:end].reshape(batch * groups, -1, dim)
        bias = torch.full((end - start, end), float("-inf"), dtype=query.dtype).triu(start + 1).repeat(share, 1)
        scores = torch.baddbmm(bias, rows, keys[:, :end].transpose(1, 2), alpha=scaling)
        mixed.append(torch.bmm(torch.softmax(scores, -1), values[:, :end]).view(batch, heads, end - start, dim))
    return torch.cat(mixed, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register("grouped", grouped_attention)


def int4(weight: Tensor) -> Tensor:
    """`weight` rounded as a symmetric int4 weight with one scale per group of inputs."""
    grouped = weight.reshape(-1, INT4_GROUP)
    scale = (grouped.abs().amax(1, keepdim=True) / 7.5).clamp_min(1e-8)
    return ((grouped / scale).round().clamp(-8, 7) * scale).reshape(weight.shape)


@contextmanager
def rounded(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Within the block the parameters hold int4 values; gradients taken there apply to the full ones."""
    kept = [parameter.data for parameter in parameters]
    for parameter in parameters:
        parameter.data = int4(parameter.data)
    try:
        yield
    finally:
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data = data
