"""An EAGLE-3 draft head: one decoder layer that guesses a target's next tokens from the target's own features.

Entry p of a draft pairs the embedding of token p + 1 with the target's features at p and predicts token p + 2; one
level deeper, the layer's own output replaces the features that the target has not computed yet (Li et al. 2025,
arXiv 2503.01840). Parameters are named as in published checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from agentkv_runtime.export.row_ops import rope, rope_table
from agentkv_runtime.hf.op import update_and_attend

__all__ = ["DraftHead", "DraftLayer"]

_Config = Any  # a LlamaConfig, whose fields transformers types as optional


class _Projections(nn.Module):
    """Projections to queries, keys and values of the mixed input, and of the result."""

    def __init__(self, config: _Config) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * width, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * width, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * width, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, width, bias=False)


class _GatedMlp(nn.Module):
    def __init__(self, config: _Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn: nn.Module = ACT2FN[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., H]` -> `[..., H]`."""
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """The head's decoder layer, in two halves: before and after attention."""

    def __init__(self, config: _Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_norm = nn.RMSNorm(width, eps)
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)
        self.self_attn = _Projections(config)
        self.mlp = _GatedMlp(config)

    def mix(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Embedded tokens and hidden states `[..., H]` -> input of queries, keys and values, `[..., 2 H]`."""
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)

    def finish(self, attended: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Attention's result `[..., Hq D]` and the layer's input states `[..., H]` -> its output states `[..., H]`."""
        hidden = hidden + self.self_attn.o_proj(attended)
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class DraftHead(nn.Module):
    """The head as `draft.pte` runs it: `fuse` features to hidden states, then `forward` once per level."""

    d2t: torch.Tensor
    t2d: torch.Tensor
    inv_freq: torch.Tensor

    def __init__(self, config: LlamaConfig, feature_dim: int) -> None:
        """`config` is a published head's config.json; its `draft_vocab_size` defaults to the target's `vocab_size`.

        `feature_dim` is F, the floats per row of the target's features.
        """
        super().__init__()
        self.config: _Config = config
        self.feature_dim = feature_dim
        self.draft_vocab_size: int = getattr(config, "draft_vocab_size", None) or config.vocab_size
        self.embed_tokens: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(feature_dim, config.hidden_size, bias=False)
        self.midlayer = DraftLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, self.draft_vocab_size, bias=False)
        # Draft token i is target token i + d2t[i]; t2d marks the target's tokens that the head can say.
        self.register_buffer("d2t", torch.zeros(self.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(config.vocab_size) < self.draft_vocab_size)
        rotary: Any = LlamaRotaryEmbedding(config)
        self.register_buffer("inv_freq", rotary.inv_freq.float(), persistent=False)
        self.rope_scaling = float(rotary.attention_scaling)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the target's tokens; named as in transformers."""
        return self.embed_tokens

    def set_input_embeddings(self, embedding: nn.Module) -> None:
        """Replaces the embedding."""
        self.embed_tokens = embedding

    def get_output_embeddings(self) -> nn.Module:
        """The head of the draft's vocabulary."""
        return self.lm_head

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """features `[T, F]` of the target -> hidden `[T, H]`."""
        hidden: torch.Tensor = self.fc(features)
        return hidden

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, hidden: torch.Tensor, logits_indices: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens `[T]` and position `[T]`, int64, with hidden `[T, H]`; logits_indices `[N]` chooses rows.

        Returns those rows' logits `[N, draft vocabulary]` and hidden states `[N, H]`, the next level's input. All rows
        enter the cache; the others cost nothing else.
        """
        config, projections = self.config, self.midlayer.self_attn
        mixed = self.midlayer.mix(self.embed_tokens(tokens), hidden)
        q, k, v = (
            projection(mixed).view(1, -1, heads, config.head_dim).transpose(1, 2)
            for projection, heads in (
                (projections.q_proj, config.num_attention_heads),
                (projections.k_proj, config.num_key_value_heads),
                (projections.v_proj, config.num_key_value_heads),
            )
        )
        table = rope_table(position, self.inv_freq, self.rope_scaling)
        attended = update_and_attend(
            rope(q, table, False), rope(k, table, False), v, position, 0, config.head_dim**-0.5, q.dtype, 0
        )
        attended = attended.transpose(1, 2).reshape(-1, config.num_attention_heads * config.head_dim)
        out = self.midlayer.finish(attended.index_select(0, logits_indices), hidden.index_select(0, logits_indices))
        logits: torch.Tensor = self.lm_head(self.norm(out))
        return logits, out
