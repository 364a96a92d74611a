"""Token counts that chat and completions report: usage in the shape of OpenAI's API, progress in llama.cpp's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from openai.types import CompletionUsage
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails

from ..._types.results import Generation

if TYPE_CHECKING:
    from ..prompts import PromptBegun


def usage_of(prompt: int, cached: int, made: Iterable[Generation[Any]], reasoning: int = 0) -> CompletionUsage:
    """Token usage of a prompt, of which `cached` tokens were in the cache, and of its generations, of which `reasoning`
    tokens are reasoning."""
    completion = sum(len(each.tokens) for each in made)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=min(cached, prompt), audio_tokens=0),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning),
    )


class PromptProgress:
    """`{"total", "cache", "processed", "time_ms"}` of one prompt, as llama.cpp's server reports it (`return_progress`);
    timed from its construction."""

    def __init__(self, begun: PromptBegun) -> None:
        self._began = time.monotonic()
        self._of_prompt = {"total": len(begun.tokens), "cache": begun.cached}

    def __call__(self, processed: int) -> dict[str, int]:
        """Returns the progress; `processed` counts tokens, cached ones included."""
        passed = time.monotonic() - self._began
        return {**self._of_prompt, "processed": processed, "time_ms": round(1000 * passed)}
