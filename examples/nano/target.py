"""The trained model as it runs once exported, for a draft head to learn from."""

from __future__ import annotations

from pathlib import Path

import torch
from agentkv_runtime.export.features import feature_layers
from torch import Tensor
from transformers import LlamaForCausalLM

from . import model as nano


class Target:
    """The model in `folder` with its matrices and its head rounded to int4, its embedding to 16 bits."""

    def __init__(self, folder: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
        self.model.set_attn_implementation("grouped")
        self.config = self.model.config
        embedding = self.model.model.embed_tokens.weight
        self.head = nano.int4(embedding.data)
        for parameter in self.model.parameters():
            parameter.data = nano.int4(parameter.data) if parameter.ndim == 2 else parameter.data
        embedding.data = LlamaForCausalLM.from_pretrained(folder).model.embed_tokens.weight.data.half().float()
        self.embedding = embedding.data
        self._layers = feature_layers(self.config.num_hidden_layers)
        self.feature_dim = len(self._layers) * self.config.hidden_size
        self._streams: dict[int, Tensor] = {}
        for count in self._layers:
            self.model.model.layers[count - 1].register_forward_hook(self._keeper(count))

    def _keeper(self, count: int):  # type: ignore[no-untyped-def]
        def keep(_module: torch.nn.Module, _args: object, out: Tensor | tuple[Tensor, ...]) -> None:
            self._streams[count] = out[0] if isinstance(out, tuple) else out

        return keep

    @torch.no_grad()
    def run(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens `[rows, length]` -> features `[rows, length, F]` and what the LM head reads, `[rows, length, H]`."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            last = self.model.model(tokens, use_cache=False).last_hidden_state
        return torch.cat([self._streams[count].float() for count in self._layers], -1), last

    @torch.no_grad()
    def logits(self, last: Tensor) -> Tensor:
        """`[n, H]` -> `[n, vocabulary]`."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.nn.functional.linear(last, self.head).float()
