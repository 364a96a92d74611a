"""Values of the SDK as JSON, and back."""

from __future__ import annotations

import json
from typing import Any

from .._generation import Generation
from .._inputs import Prompt, checked_ids, checked_sampling, text_of
from .._messages import checked_messages, is_messages
from .._sampling import Sampling
from ..output import JsonSchema
from ..output._asked import Asked
from ..output._told import told_output
from ..output._typed import Typed
from ..remote.errors import error_of
from ._told import ToldGeneration

Told = dict[str, Any]
_MOST_TOKENS = 2**31


def prompt_told(prompt: Prompt) -> Told:
    """A prompt. Raises InvalidInput."""
    if isinstance(prompt, str | bytes):
        return {"text": text_of(prompt, "a prompt")}
    if is_messages(prompt):
        return {"messages": checked_messages(prompt)}
    return {"tokens": checked_ids(prompt, _MOST_TOKENS)}


def output_told(asked: Asked[Any]) -> Told | None:
    """What holds an output; None for nothing. Raises InvalidInput for what runs in this process."""
    return told_output(asked.constraint)


def sampling_told(sampling: Sampling | None) -> Told | None:
    """How tokens are drawn. Raises InvalidInput."""
    return None if sampling is None else checked_sampling(sampling).model_dump(exclude_none=True)


def generation_of(told: ToldGeneration, asked: Asked[Any]) -> Generation[Any]:
    """A generation, with the value that was asked for."""
    value: Any = None
    fault: Exception | None = None
    if told.output_error is not None:
        fault = error_of("the server", told.output_error)
    else:
        text = told.output if isinstance(told.output, str) and not _is_json(asked) else json.dumps(told.output)
        value, fault = asked.outcome(lambda: text, told.finish_reason)
    return Generation(
        text=told.text,
        tokens=told.tokens,
        logprobs=told.logprobs,
        finish_reason=told.finish_reason,
        usage=told.usage,
        seed=told.seed,
        top_logprobs=told.top_logprobs,
        _value=value,
        _fault=fault,
    )


def _is_json(asked: Asked[Any]) -> bool:
    source = asked.constraint
    return isinstance(source, JsonSchema) or (isinstance(source, Typed) and not source.words)
