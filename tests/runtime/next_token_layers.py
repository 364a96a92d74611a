"""Tiny checkpoints with a multi-token prediction layer of random weights, named as families name theirs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.models import TinySpec, tiny_model, tiny_spec, write_hf_folder

__all__ = ["FAMILIES", "Family", "Reference", "write_with_layer"]


@dataclass(frozen=True)
class Family:
    """A family's model and how it names and mixes: `{n}` is the number of the model's layers."""

    spec: TinySpec
    root: str
    inner: str
    embedded: str
    hidden: str
    mix: str
    norm: str
    hidden_first: bool = False
    own_head: bool = False
    """Whether the layer brings a copy of the head along, as DeepSeek's do."""


_DEEPSEEK = ("model.layers.{n}.", "", "enorm", "hnorm", "eh_proj", "shared_head.norm")
_QWEN = ("mtp.", "layers.0.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
_MIMO = ("model.mtp_layers.0.", "", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")

FAMILIES = {
    "deepseek_v3": Family(tiny_spec("deepseek3_moe"), *_DEEPSEEK, own_head=True),
    "glm4_moe": Family(tiny_spec("glm4_moe"), *_DEEPSEEK),
    "qwen3_next": Family(tiny_spec("qwen3_next"), *_QWEN),
    "qwen2-mimo": Family(tiny_spec("qwen2"), *_MIMO, hidden_first=True),
    "llama": Family(tiny_spec("llama"), *_DEEPSEEK),
    "qwen3-tied": Family(tiny_spec("qwen3"), *_DEEPSEEK),
}


def write_with_layer(family: Family, folder: Path) -> Reference:
    """Writes the model with its layer as published checkpoints have it; returns what to compare with."""
    spec = family.spec
    write_hf_folder(spec, folder)
    target = tiny_model(spec)
    layer = _one_layer(spec, target)
    generator = torch.Generator().manual_seed(11)
    width = spec.hidden

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    centred = 0.0 if spec.kind == "qwen3_next" else 1.0
    around = {
        family.embedded: centred + 0.1 * noise(width),
        family.hidden: centred + 0.1 * noise(width),
        family.mix: noise(width, 2 * width) / (2 * width) ** 0.5,
    }
    with torch.no_grad():
        layer.model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        layer.get_output_embeddings().weight.copy_(target.get_output_embeddings().weight)
    block = folder.parent / f"{folder.name}-layer"
    layer.save_pretrained(block)
    named = load_file(block / "model.safetensors")
    root = family.root.format(n=spec.layers)
    tensors = {f"{root}{name}.weight": value for name, value in around.items()}
    tensors[f"{root}{family.norm}.weight"] = named["model.norm.weight"]
    for name, value in named.items():
        if name.startswith("model.layers.0."):
            tensors[root + family.inner + name.removeprefix("model.layers.0.")] = value
    if family.own_head:
        tensors[f"{root}shared_head.head.weight"] = named["lm_head.weight"].clone()
        tensors[f"{root}embed_tokens.weight"] = named["model.embed_tokens.weight"].clone()
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    return Reference(family, target, layer, around)


def _one_layer(spec: TinySpec, target: Any) -> Any:
    """A model of one layer like the target's last one that attends, with other weights."""
    import transformers

    config = copy.deepcopy(target.config)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"]
    if hasattr(config, "first_k_dense_replace") and "moe" in spec.kind:
        config.first_k_dense_replace = 0
    layer = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() < 2:
                weight.copy_(0.1 * noise + (1.0 if "norm" in name and spec.kind != "qwen3_next" else 0.0))
            else:
                weight.copy_(noise * 1.2 / weight.shape[-1] ** 0.5)
    return layer


@dataclass(frozen=True)
class Reference:
    """The model and its layer in torch, without caches, from the papers' words."""

    family: Family
    target: Any
    layer: Any
    around: dict[str, torch.Tensor]

    @torch.no_grad()
    def hidden(self, tokens: list[int]) -> torch.Tensor:
        """The model's own hidden states behind its final norm, `[T, H]`."""
        out: torch.Tensor = self.target.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
        return out

    @torch.no_grad()
    def chain(self, tokens: list[int], depth: int) -> tuple[list[int], torch.Tensor]:
        """What likely follows `tokens`, whose last one the model has not run, and its logits `[depth, V]`.

        Row t has the hidden state at t and the token t + 1; each guess appends a row with the layer's own output.
        """
        hidden, next_tokens, said, rows = self.hidden(tokens[:-1]), tokens[1:], [], []
        for _ in range(depth):
            out = self.layer.model(inputs_embeds=self._mixed(next_tokens, hidden)[None], use_cache=False)
            last = out.last_hidden_state[0, -1]
            logits = self.layer.get_output_embeddings()(last)
            rows.append(logits)
            said.append(int(logits.argmax()))
            hidden, next_tokens = torch.cat((hidden, last[None])), [*next_tokens, said[-1]]
        return said, torch.stack(rows)

    def _mixed(self, tokens: list[int], hidden: torch.Tensor) -> torch.Tensor:
        family = self.family
        embedded = self._normed(self.target.model.embed_tokens.weight[tokens], self.around[family.embedded])
        hidden = self._normed(hidden, self.around[family.hidden])
        pair = (hidden, embedded) if family.hidden_first else (embedded, hidden)
        return torch.cat(pair, -1) @ self.around[family.mix].T

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = 1.0 + weight if self.family.spec.kind == "qwen3_next" else weight
        return rows * (rows.square().mean(-1, keepdim=True) + self.target.config.rms_norm_eps).rsqrt() * scale
