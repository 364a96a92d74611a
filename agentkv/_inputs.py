"""What users pass in, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._errors import InvalidInput
from ._sampling import Sampling

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | bytes | Sequence[int] | NDArray[np.integer[Any]] | Sequence[Message]


def text_of(value: str | bytes, what: str) -> str:
    """A str that can be encoded as UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{what} has the byte 0x{value[error.start]:02x} at offset {error.start}, which is not UTF-8; "
                "decode it with its own encoding first"
            ) from None
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} has the lone surrogate U+{ord(value[error.start]):04X} at offset {error.start}, which has no "
            "UTF-8 form; decode the text with errors='replace'"
        ) from None
    return value


def is_messages(prompt: object) -> bool:
    """Is it a non-empty list of chat messages?"""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and len(prompt) > 0
        and isinstance(prompt[0], Mapping)
    )


def checked_messages(messages: Sequence[Any]) -> list[Message]:
    """Chat messages, each a mapping with a `role`."""
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInput(
                f"message {index} is {message!r}, but a chat message is a mapping with a 'role' and a 'content'"
            )
    return list(messages)


def checked_ids(ids: object, vocab_size: int) -> list[int]:
    """Token ids, each an int with 0 <= id < vocab_size."""
    try:
        array = np.asarray(ids)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInput(
            f"a prompt is a str, a list of token ids, or a list of chat messages, not {_shown(ids)}; "
            "encode other things with `ctx.tokenizer` first"
        )
    bad = np.flatnonzero((array < 0) | (array >= vocab_size))
    if bad.size:
        raise InvalidInput(
            f"token {array[bad[0]]} at index {bad[0]} is not in the vocabulary; ids are from 0 to {vocab_size - 1}"
        )
    tokens: list[int] = array.tolist()
    return tokens


def checked_count(value: object, what: str, least: int, most: int | None = None) -> int:
    """An int within bounds; bool is not one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidInput(f"{what} is {_shown(value)}, but it must be an int")
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidInput(f"{what} is {value}, but it must be {bound}")
    return int(value)


def checked_stop(stop: object) -> list[bytes]:
    """Stop strings as UTF-8 bytes; None and () mean none."""
    if stop is None:
        return []
    if isinstance(stop, str | bytes):
        stop = [stop]
    if not isinstance(stop, Iterable):
        raise InvalidInput(f"stop is {_shown(stop)}, but it must be a str or a list of str")
    strings = []
    for item in stop:
        if not isinstance(item, str | bytes) or not item:
            raise InvalidInput(f"stop has {_shown(item)}, but each stop string must be a str with at least 1 character")
        strings.append(text_of(item, "stop").encode("utf-8"))
    return strings


def checked_sampling(sampling: object) -> Sampling:
    """A Sampling; None means greedy."""
    if sampling is None:
        return Sampling()
    if not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling is {_shown(sampling)}, but it must be a kv.Sampling")
    return sampling


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
