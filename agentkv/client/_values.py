"""Values of the SDK as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._generation import Generation, Token, TopLogprob, Usage
from .._inputs import Prompt, checked_ids
from .._message import Message, ToolCall
from .._messages import checked_messages, is_messages
from .._sampling import Sampling
from ..output import JsonSchema
from ..output._asked import Asked
from ..output._told import told_output
from ..output._typed import Typed
from ..remote.errors import error_of
from ._wire import Told

_MOST_TOKENS = 2**31


def prompt_told(prompt: Prompt) -> Told:
    """A prompt. Raises InvalidInput."""
    if isinstance(prompt, str):
        return {"text": prompt}
    if is_messages(prompt):
        return {"messages": checked_messages(prompt)}
    return {"tokens": checked_ids(prompt, _MOST_TOKENS)}


def output_told(asked: Asked[Any]) -> Told | None:
    """What holds an output; None for nothing. Raises InvalidInput for what runs in this process."""
    return told_output(asked.constraint)


def sampling_told(sampling: Sampling | None) -> Told | None:
    """How tokens are drawn."""
    return None if sampling is None else sampling.model_dump(exclude_none=True)


def generation_of(told: Mapping[str, Any], asked: Asked[Any]) -> Generation[Any]:
    """A generation, with the value that was asked for."""
    fields = {**told}
    value, fault = fields.pop("output"), fields.pop("output_error")
    if fault is not None:
        value, fault = None, error_of("the server", fault)
    else:
        text = value if isinstance(value, str) and not _is_json(asked) else json.dumps(value)
        value, fault = asked.outcome(lambda: text, fields["finish_reason"])
    fields["usage"] = Usage(**fields["usage"])
    fields["top_logprobs"] = [tuple(TopLogprob(**top) for top in place) for place in fields["top_logprobs"]]
    return Generation(**fields, _value=value, _fault=fault)


def token_of(told: Mapping[str, Any]) -> Token:
    """A token of a stream."""
    return Token(**{**told, "top_logprobs": tuple(TopLogprob(**top) for top in told["top_logprobs"])})


def message_of(told: Mapping[str, Any]) -> Message:
    """A message."""
    return Message(**{**told, "calls": tuple(ToolCall(**call) for call in told["calls"])})


def _is_json(asked: Asked[Any]) -> bool:
    source = asked.constraint
    return isinstance(source, JsonSchema) or (isinstance(source, Typed) and not source.words)
