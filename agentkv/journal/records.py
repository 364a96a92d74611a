"""Entries of turns in a journal, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from .._types.checks import Prompt
from .._types.message import Message, as_mapping
from .._types.run import CallRecord, CallRequest
from ..agents.steering import Steering
from ..agents.turn_state import TurnStart, TurnState

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading an entry raises that says what cannot be."""


class _SavedStart(TypedDict):
    prompt: str | list[int] | list[dict[str, Any]] | None
    once: bool
    keep: bool
    instructions: str
    tools: list[str]
    steering: dict[str, Any]


_START = TypeAdapter(_SavedStart)
_STATE = TypeAdapter(TurnState)
_REQUEST = TypeAdapter(CallRequest)
_RECORD = TypeAdapter(CallRecord)


def text_of_start(start: TurnStart) -> str:
    """JSON of the beginning of a turn."""
    return _text({**asdict(replace(start, prompt=None)), "prompt": _plain_prompt(start.prompt)})


def start_of(text: str) -> TurnStart:
    """The beginning of a turn. Raises ValueError or TypeError."""
    start = TurnStart(**_START.validate_python(json.loads(text)))
    Steering().with_saved(start.steering)  # raises for rules that cannot be
    return start


def text_of_state(state: TurnState) -> str:
    """JSON of a state of a turn, of its messages only the last one."""
    return _text(asdict(replace(state, messages=state.messages[-1:])))


def state_of(texts: Sequence[str]) -> TurnState:
    """The last of several states of a turn, with the messages of all. Raises ValueError."""
    states = [_STATE.validate_python(json.loads(text)) for text in texts]
    if not all(state.messages for state in states):
        raise ValueError("a state of its turn has no message")
    return replace(states[-1], messages=tuple(message for state in states for message in state.messages))


def text_of_request(request: CallRequest) -> str:
    """JSON of a call, the same for equal calls."""
    return json.dumps(asdict(request), sort_keys=True, default=str)


def request_of(text: str) -> CallRequest:
    """A call. Raises ValueError."""
    return _REQUEST.validate_python(json.loads(text))


def text_of_record(record: CallRecord) -> str:
    """JSON of the outcome of a call; a result that has no JSON form becomes the text that the model reads."""
    try:
        result = to_jsonable_python(record.result)
        return _text({**asdict(replace(record, result=None)), "result": result})
    except (ValueError, TypeError):
        return _text(asdict(replace(record, result=record.content)))


def record_of(text: str) -> CallRecord:
    """The outcome of a call. Raises ValueError."""
    return _RECORD.validate_python(json.loads(text))


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, default=_sets_as_lists)


def _sets_as_lists(value: object) -> object:
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value)


def _plain_prompt(prompt: Prompt | None) -> object:
    """A prompt as JSON has it: a text, ids or messages."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes):
        return prompt.decode("utf-8", "replace")
    if isinstance(prompt, np.ndarray):
        return prompt.tolist()
    return [as_mapping(part) if isinstance(part, Message) else _plain_part(part) for part in prompt]


def _plain_part(part: Any) -> object:
    if isinstance(part, Mapping):
        return {**part}
    return int(part)
