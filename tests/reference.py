"""What a model says without any cache: transformers' own attention over the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Reference:
    """A Hugging Face folder run by transformers alone, with its plainest attention and no cache."""

    def __init__(self, folder: Path, dtype: str = "fp32") -> None:
        import torch
        import transformers

        dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
        self._torch = torch
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtypes[dtype], attn_implementation="eager"
        ).eval()
        self._rows: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits `[len(tokens), vocab]`: row i follows tokens[: i + 1]."""
        key = tuple(int(token) for token in tokens)
        if key not in self._rows:
            with self._torch.inference_mode():
                ids = self._torch.tensor([list(key)])
                self._rows[key] = self.model(input_ids=ids, use_cache=False).logits[0].float().numpy()
        return self._rows[key]

    def next_logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits `[vocab]` after the whole sequence."""
        return self.logits(tokens)[-1]
