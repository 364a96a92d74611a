"""A source's model as transformers computes it, in float32, for comparison with exported models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.sessions import Logits
from agentkv_runtime.sources.source import described, load_source

__all__ = ["SourceModel"]


class SourceModel:
    """A `ScoredModel` of `agentkv_runtime.quality` over a Hugging Face folder or a GGUF file."""

    block = 64

    def __init__(self, path: Path) -> None:
        """Loads the whole model in float32. Raises ExportError for sources that export refuses, too."""
        with described(path) as words:
            self._model: Any = load_source(path, words.folder, None)
            load_all(self._model)
        self.vocab_size: int = self._model.config.get_text_config().vocab_size

    @torch.inference_mode()
    def _last(self, tokens: Sequence[int], count: int) -> Logits:
        output = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=count)
        rows: Logits = output.logits[0, -count:].float().numpy()
        return rows

    def logits(self, tokens: Sequence[int], first: int, block: int) -> Iterator[Logits]:
        """Yields next-token logits after tokens[first:], float32 `[<= block, vocab]` each."""
        rows = self._last(tokens, len(tokens) - first)
        for begin in range(0, len(rows), block):
            yield rows[begin : begin + block]
