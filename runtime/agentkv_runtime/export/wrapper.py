"""`forward(tokens, position, logits_indices) -> logits` around any decoder-only model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from agentkv_runtime.export.attention import ATTENTION_NAME, UnsupportedModelError, feeding

__all__ = ["CachedForward", "feature_layers"]

_rows: ContextVar[torch.Tensor | None] = ContextVar("agentkv_rows", default=None)


def feature_layers(n_layers: int) -> tuple[int, int, int]:
    """After how many decoder layers EAGLE-3 reads the residual stream: low, middle and high."""
    if n_layers >= 8:
        return 2, n_layers // 2, n_layers - 3
    return 1, (n_layers + 1) // 2, n_layers


class _HeadOnRows(nn.Module):
    """The LM head, applied to the selected rows only."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden `[1, T, H]` -> `[N, vocab]` for the rows that CachedForward was asked for."""
        rows = _rows.get()
        assert rows is not None, "the head runs inside CachedForward"
        out: torch.Tensor = self.head(hidden.index_select(1, rows).view(-1, hidden.shape[-1]))
        return out


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{type(model).__name__} has no list of {count} decoder layers to take features from")


class _ResidualStream:
    """Keeps what chosen decoder layers give out, before any final norm."""

    def __init__(self, layers: nn.ModuleList, after: Sequence[int]) -> None:
        for count in after:
            if not 1 <= count <= len(layers):
                raise UnsupportedModelError(
                    f"features after layer {count} of a model that has layers 1 to {len(layers)}"
                )
        self._after = tuple(after)
        self._hidden: dict[int, torch.Tensor] = {}
        for count in set(after):
            layers[count - 1].register_forward_hook(self._keeper(count))

    def _keeper(self, count: int) -> Any:
        def keep(_module: nn.Module, _args: object, out: Any) -> None:
            self._hidden[count] = out[0] if isinstance(out, tuple) else out

        return keep

    def take(self) -> torch.Tensor:
        """features `[T, F]` float32 of the forward that just ran: the layers side by side."""
        streams = [self._hidden[count] for count in self._after]
        self._hidden.clear()
        return torch.cat([hidden.view(-1, hidden.shape[-1]) for hidden in streams], dim=-1).float()


class CachedForward(nn.Module):
    """Feeds T tokens at their positions and returns the logits of N chosen rows. Takes the model over."""

    def __init__(self, model: PreTrainedModel, features: Sequence[int] = ()) -> None:
        """`features`: after how many decoder layers to give out the residual stream, too; empty for nowhere.

        Raises UnsupportedModelError for a model without a language-model head or without those layers.
        """
        super().__init__()
        head = model.get_output_embeddings()
        if head is None:
            raise UnsupportedModelError(f"{type(model).__name__} has no language-model head")
        model.set_attn_implementation(ATTENTION_NAME)
        model.set_output_embeddings(_HeadOnRows(head))
        self.model = model.eval()
        self._stream = _ResidualStream(_decoder_layers(model), features) if features else None

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, logits_indices: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """tokens `[T]`, position `[T]`, logits_indices `[N]`, all int64 -> logits `[N, vocab]` float32.

        With features, (logits, features `[T, F]` float32).
        """
        token = _rows.set(logits_indices)
        try:
            with feeding(position):
                out = self.model(input_ids=tokens[None], position_ids=position[None], use_cache=False)
        finally:
            _rows.reset(token)
        logits: torch.Tensor = out.logits.float()
        return logits if self._stream is None else (logits, self._stream.take())
