"""`forward(tokens, position, logits_indices) -> logits` around any decoder-only model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.hf.attention import ATTENTION_NAME, feeding
from agentkv_runtime.hf.features import ResidualStream
from agentkv_runtime.hf.own_positions import position_offset
from agentkv_runtime.hf.temperature import take_temperatures

__all__ = ["CachedForward"]


@dataclass
class _Rows:
    """The rows that the head runs on in one forward."""

    indices: torch.Tensor
    hidden: torch.Tensor | None = None
    """Their hidden states as the head reads them, `[N, H]`."""


_rows: ContextVar[_Rows | None] = ContextVar("agentkv_rows", default=None)


class _HeadOnRows(nn.Module):
    """The LM head, applied to the selected rows only."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped head, for models that read them."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("head"), name)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden `[1, T, H]` -> `[N, vocab]` for the rows that CachedForward selected."""
        rows = _rows.get()
        assert rows is not None, "the head runs inside CachedForward"
        rows.hidden = hidden.index_select(1, rows.indices).view(-1, hidden.shape[-1])
        out: torch.Tensor = self.head(rows.hidden)
        return out


class CachedForward(nn.Module):
    """Feeds T tokens at their positions and returns the logits of N chosen rows. Changes the model in place."""

    def __init__(self, model: PreTrainedModel, features: Sequence[int] = ()) -> None:
        """`features` are numbers of decoder layers after which to return the residual stream, too.

        Raises UnsupportedModelError for a model without a language-model head or without those layers.
        """
        super().__init__()
        head = model.get_output_embeddings()
        if head is None:
            raise UnsupportedModelError(f"{type(model).__name__} has no language-model head")
        model.set_attn_implementation(ATTENTION_NAME)
        take_temperatures(model)
        self._offset = position_offset(model)
        model.set_output_embeddings(_HeadOnRows(head))
        self.model = model.eval()
        self.attended: set[int] = set()
        """`layer_idx` of the layers that have attended in any forward."""
        self._stream = ResidualStream(model, features) if features else None

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, logits_indices: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """tokens `[T]`, position `[T]`, logits_indices `[N]`, all int64 -> logits `[N, vocab]` float32.

        With features, (logits, features `[T, F]` float32).
        """
        logits, _ = self.run(tokens, position, logits_indices)
        return logits if self._stream is None else (logits, self._stream.take())

    def run(
        self, tokens: torch.Tensor, position: torch.Tensor, logits_indices: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`forward` without features: (logits, hidden states of the chosen rows `[N, H]` as the head read them)."""
        rows = _Rows(logits_indices)
        token = _rows.set(rows)
        try:
            with feeding(position) as forward:
                out = self.model(input_ids=tokens[None], position_ids=position[None] + self._offset, use_cache=False)
        finally:
            _rows.reset(token)
        self.attended.update(forward.layers)  # tracing would undo an assignment
        return out.logits.float(), rows.hidden
