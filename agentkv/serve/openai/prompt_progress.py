"""Progress of a prefill in the shape of llama.cpp's server (`return_progress`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..prompts import PromptBegun


class PromptProgress:
    """`{"total", "cache", "processed", "time_ms"}` of one prompt, timed from its construction."""

    def __init__(self, begun: PromptBegun) -> None:
        self._began = time.monotonic()
        self._of_prompt = {"total": len(begun.tokens), "cache": begun.cached}

    def __call__(self, processed: int) -> dict[str, int]:
        """Returns the progress; `processed` counts tokens, cached ones included."""
        passed = time.monotonic() - self._began
        return {**self._of_prompt, "processed": processed, "time_ms": round(1000 * passed)}
