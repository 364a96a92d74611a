"""The trained model as it runs once exported, for a draft head to learn from."""

from __future__ import annotations

from pathlib import Path

import torch
from agentkv_runtime.hf.features import ResidualStream, feature_layers
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from . import model as nano


class Target:
    """The model in `folder` with its matrices and its LM head rounded to int4, and its embedding to 16 bits."""

    @torch.no_grad()
    def __init__(self, folder: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
        self.model.set_attn_implementation("grouped")
        self.config = self.model.config
        embedding = self.model.model.embed_tokens.weight
        self.head = nano.int4(embedding)
        self.embedding = embedding.half().float()
        for parameter in self.model.parameters():
            if parameter is embedding:
                parameter.data = self.embedding
            elif parameter.ndim == 2:
                parameter.data = nano.int4(parameter.data)
        layers = feature_layers(self.config.num_hidden_layers, "eagle")
        self.feature_dim = len(layers) * self.config.hidden_size
        self._stream = ResidualStream(self.model, layers)

    @torch.no_grad()
    def run(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens `[rows, length]` -> features `[rows, length, F]` and what the LM head reads, `[rows, length, H]`."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=nano.BFLOAT16):
            last = self.model.model(tokens, use_cache=False).last_hidden_state
        return self._stream.take().view(*tokens.shape, -1), last

    @torch.no_grad()
    def logits(self, last: Tensor) -> Tensor:
        """`[n, H]` -> `[n, vocabulary]`."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=nano.BFLOAT16):
            return functional.linear(last, self.head).float()
