"""Body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator

from ..http.errors import ApiError
from .chat_body import ChatStreamOptions, Count, OfAStream
from .sampling_body import SamplingBody, Stop

Prompt: TypeAlias = str | list[int]


def _prompts(value: Any) -> list[Prompt]:
    prompts = [value] if isinstance(value, str) or _is_ids(value) else value
    if not isinstance(prompts, list) or not prompts:
        raise ValueError("it must be a text, a list of token ids, or a list of these")
    for prompt in prompts:
        if not isinstance(prompt, str) and not _is_ids(prompt):
            raise ValueError("each prompt must be a text, or a list of at least one token id")
    return prompts


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


class CompletionRequest(SamplingBody):
    """A request for completions. `user` changes nothing here; it is accepted and not used."""

    model: str
    prompt: Annotated[list[Prompt], PlainValidator(_prompts)]
    max_tokens: Count = 16  # the protocol's own
    n: Count = 1
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: Annotated[ChatStreamOptions | None, OfAStream] = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None  # llama.cpp's: pieces with `prompt_progress`, in a stream
    user: str | None = None

    def check(self, most_choices: int) -> None:
        """Raises ApiError for fields that exclude each other, and for too many choices."""
        if self.echo and self.logprobs is not None:
            raise ApiError("invalid", "log-probabilities of the prompt are not made; leave one out", param="echo")
        choices = len(self.prompt) * self.n
        if choices > most_choices:
            told = f"{len(self.prompt)} prompts of {self.n} choices are {choices}, but at most {most_choices} are made"
            raise ApiError("invalid", told, param="n")
