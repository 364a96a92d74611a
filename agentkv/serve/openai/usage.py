"""Token usage in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openai.types import CompletionUsage
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails

from ..._types.results import Generation


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
