"""Parts that families share: tensor names, and the changes that converters make to tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agentkv_runtime.gguf.architectures.architecture import Architecture
from agentkv_runtime.gguf.architectures.layout import Layout, Names, Sizes, Source
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.weights import Order

Choice = Callable[[Keys], Architecture]
"""Chooses the architecture of a file whose name alone does not determine it."""

__all__ = [
    "ATTENTION",
    "GATED",
    "HEAD_NORMS",
    "MAYBE_BIASED_ATTENTION",
    "MAYBE_BIASED_GATED",
    "NORMS",
    "OUTER",
    "PERMUTED_ATTENTION",
    "POST_NORMS",
    "SANDWICH_NORMS",
    "Choice",
    "always",
    "biased",
    "biases",
    "experts_of",
    "llama",
    "maybe_biased",
    "shifted",
    "with_biases",
    "with_maybe_biases",
]


def maybe_biased(*parts: str, order: Callable[[Sizes], Order] | None = None) -> Source:
    """A weight with a bias, if the file has one."""
    return Source(parts, bias=None, order=order)


def biased(*parts: str) -> Source:
    """A weight with a bias."""
    return Source(parts, bias=True)


def with_maybe_biases(names: Names) -> Names:
    """Weights with biases, as far as the file has them."""
    return {name: maybe_biased(part) if isinstance(part, str) else part for name, part in names.items()}


def with_biases(names: Names) -> Names:
    """Weights with biases."""
    return {name: biased(part) if isinstance(part, str) else part for name, part in names.items()}


def always(architecture: Architecture) -> Choice:
    """The Choice of a name that stands for one architecture."""
    return lambda _keys: architecture


def biases(keys: Keys, *names: str) -> bool:
    """Whether these weights have biases. Raises UnsupportedModelError if only some do."""
    there = [name for name in names if keys.has(f"blk.0.{name}.bias")]
    if there and len(there) < len(names):
        keys.unsupported(f"{there[0]} has a bias and {next(name for name in names if name not in there)} has none")
    return bool(there)


def shifted(names: Names, by: float = -1.0) -> Names:
    """Norms of models that scale by 1 + weight, from whose stored values `by` removes the 1 that converters added."""
    return {name: Source((part,), added=by) if isinstance(part, str) else part for name, part in names.items()}


def _halves(heads: Callable[[Sizes], int]) -> Callable[[Sizes], Order]:
    """Row order of Llama's queries or keys: files store rotated pairs side by side, transformers half a head apart."""

    def order(sizes: Sizes) -> Order:
        rows = np.arange(heads(sizes) * sizes.head_dim).reshape(-1, sizes.head_dim // 2, 2)
        return rows.swapaxes(1, 2).reshape(-1)

    return order


OUTER: Names = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": Source(("output",), weight=None),
}
NORMS: Names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
POST_NORMS: Names = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SANDWICH_NORMS: Names = {**POST_NORMS, "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm"}
HEAD_NORMS: Names = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
ATTENTION: Names = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
MAYBE_BIASED_ATTENTION = with_maybe_biases(ATTENTION)
PERMUTED_ATTENTION: Names = {
    **MAYBE_BIASED_ATTENTION,
    "self_attn.q_proj": maybe_biased("attn_q", order=_halves(lambda sizes: sizes.heads)),
    "self_attn.k_proj": maybe_biased("attn_k", order=_halves(lambda sizes: sizes.kv_heads)),
}
GATED: Names = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
MAYBE_BIASED_GATED = with_maybe_biases(GATED)


def llama(attention: Names = PERMUTED_ATTENTION, feed_forward: Names = GATED, norms: Names = NORMS) -> Layout:
    """Llama's layout, with other names for parts of the layer where given."""
    return Layout({**norms, **attention, **feed_forward}, OUTER)


def experts_of(place: str = "mlp", router: str = "gate") -> Names:
    """Names of the stacked experts and of their router."""
    return {
        f"{place}.{router}": "ffn_gate_inp",
        f"{place}.experts.gate_up_proj": Source(("ffn_gate_exps", "ffn_up_exps"), bare=True),
        f"{place}.experts.down_proj": Source(("ffn_down_exps",), bare=True),
    }
