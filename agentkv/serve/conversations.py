"""Conversations that come back with all of their messages, recognised by those that were there before."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .._message import REASONING, Message

_KEY = secrets.token_bytes(32)  # nobody can make up a conversation of a given name


def names_of(messages: Sequence[Mapping[str, Any]], about: object) -> list[str]:
    """A name for each beginning of a conversation, the first of one message; what the model thought does not count,
    since clients drop it.

    Args:
        messages: in OpenAI's form.
        about: what else decides on its tokens, such as tools; JSON.
    """
    digest = hashlib.blake2b(_canonical(about), key=_KEY, digest_size=16)
    names = []
    for message in messages:
        digest.update(_canonical(_essence(message)))
        names.append(f"conversation:{digest.hexdigest()}")
    return names


def digest_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a conversation is and no other, the ids of its calls included; the same in every process."""
    return hashlib.blake2b(_canonical(messages), digest_size=16).hexdigest()


def contradicts(given: Sequence[Mapping[str, Any]], held: Sequence[Message]) -> bool:
    """Does a client say that the model thought something else than it did? One that says nothing of it does not."""
    return any(
        message.get(name) not in (None, "", other.reasoning)
        for message, other in zip(given, held, strict=False)
        for name in REASONING
    )


def _essence(message: Mapping[str, Any]) -> list[object]:
    calls = [_call(call.get("function") or {}) for call in message.get("tool_calls") or ()]
    others = {
        key: value for key, value in message.items() if key not in ("content", "tool_calls", *REASONING) and value
    }
    return [message.get("content") or "", calls, others]


def _call(function: Mapping[str, Any]) -> list[object]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # it is compared as it is
            arguments = json.loads(arguments)
    return [function.get("name"), arguments]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\0"
