"""Checks of arguments that users pass, made before anything is changed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput
from .message import Message
from .sampling import Sampling
from .show import shown

ChatMessage: TypeAlias = Mapping[str, Any] | Message
Prompt: TypeAlias = str | bytes | Sequence[int] | NDArray[np.integer[Any]] | Sequence[ChatMessage]


def text_of(value: str | bytes, what: str) -> str:
    """A str that can be encoded as UTF-8."""
    if isinstance(value, bytes):
        try:
            return bytes.decode(value, "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{what} has the byte 0x{value[error.start]:02x} at offset {error.start}, which is not UTF-8; "
                "decode it with its own encoding first"
            ) from None
    value = str.__str__(value)  # itself, also of a subclass
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} has {_surrogate(ord(value[error.start]), error.start)}") from None
    return value


def _surrogate(code: int, offset: int) -> str:
    """What a lone surrogate is, and how to mend it."""
    if 0xDC80 <= code <= 0xDCFF:  # PEP 383: so Python passes bytes on that came in from outside
        return (
            f"the byte 0x{code - 0xDC00:02x} at offset {offset}, which is not UTF-8 (Python has read it as "
            f"U+{code:04X}, with errors='surrogateescape'); read the text with errors='replace', or in its own encoding"
        )
    return (
        f"the lone surrogate U+{code:04X} at offset {offset}, half of a character, which has no UTF-8 form; decode the "
        "text with errors='replace', or put the other half beside it"
    )


def checked_ids(ids: object, vocab_size: int) -> list[int]:
    """Token ids, each an int with 0 <= id < vocab_size."""
    try:
        array = np.asarray(ids)
    except Exception:  # whatever its methods raise
        array = np.empty((0, 0))
    if isinstance(ids, Mapping | Message):
        raise InvalidInput(f"a prompt is {shown(ids)}, one message; give a list of messages: [message]")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInput(
            f"a prompt is a str, a list of token ids, or a list of chat messages, not {shown(ids)}; "
            "encode other things with `ctx.tokenizer` first"
        )
    bad = np.flatnonzero((array < 0) | (array >= vocab_size))
    if bad.size:
        raise InvalidInput(
            f"token {array[bad[0]]} at index {bad[0]} is not in the vocabulary; ids are from 0 to {vocab_size - 1}"
        )
    tokens: list[int] = array.tolist()
    return tokens


def as_messages(prompt: Prompt | None) -> Prompt | None:
    """What a user says is a user's message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str | bytes) else prompt


def checked_count(value: object, what: str, least: int, most: int | None = None) -> int:
    """An int within bounds; bool is not one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidInput(f"{what} is {shown(value)}, but it must be an int")
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        short = -(2**64) < value < 2**64  # Python writes no int of thousands of digits
        raise InvalidInput(f"{what} is {value if short else shown(value)}, but it must be {bound}")
    return int(value)


def checked_share(value: object, what: str) -> float:
    """A number from 0 to 1; bool is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidInput(f"{what} is {shown(value)}, but it must be a number from 0 to 1")
    return float(value)


def items_of(value: Iterable[Any], what: str) -> list[Any]:
    """What an iterable holds, whatever its methods raise."""
    try:
        return list(value)
    except Exception as error:
        raise InvalidInput(f"{what} cannot be read: {type(error).__name__}: {error}") from error


def checked_stop(stop: object) -> list[str]:
    """Stop strings, each with a UTF-8 form; None and () mean none."""
    if stop is None:
        return []
    if isinstance(stop, str | bytes):
        stop = [stop]
    if not isinstance(stop, Iterable):
        raise InvalidInput(f"stop is {shown(stop)}, but it must be a str or a list of str")
    strings = []
    for item in items_of(stop, "stop"):
        if not isinstance(item, str | bytes) or not item:
            raise InvalidInput(f"stop has {shown(item)}, but each stop string must be a str with at least 1 character")
        strings.append(text_of(item, "stop"))
    return strings


def checked_word(value: object, what: str, words: Sequence[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in words:
        raise InvalidInput(f"{what} is {shown(value)}, but it must be {' or '.join(map(repr, words))}")
    return value


def checked_sampling(sampling: object) -> Sampling:
    """A Sampling; None means greedy."""
    if sampling is None:
        return Sampling()
    if not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling is {shown(sampling)}, but it must be a kv.Sampling")
    return sampling


def checked_name(value: object, what: str) -> str:
    """A text of at least one character."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{what} is {shown(value)}, but it must be a str with at least 1 character")
    return text_of(value, what)


def checked_path(value: object, what: str, of: str = "a model folder") -> Path:
    """A path, with `~` expanded; whether anything is there shows when it is opened."""
    text = text_of(str(value) if isinstance(value, Path) else value, what) if isinstance(value, str | Path) else ""
    if not text:
        raise InvalidInput(f"{what} is {shown(value)}, but it must be the path of {of}")
    if "\0" in text:
        raise InvalidInput(f"{what} is {shown(text)}, but no path has a NUL character")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # a home that there is not
        raise InvalidInput(f"{what} is {shown(text)}: {error}; write the path out") from None


def truth_of(answer: object, of: str) -> bool:
    """Is what a function of the user's returned true? Raises InvalidInput for what is neither true nor false."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidInput(f"{of} returned {shown(answer)}, but it is not awaited; make it a plain function")
    try:
        return bool(answer)
    except Exception as error:
        raise InvalidInput(f"{of} returned {shown(answer)}, but it must be True or False: {error}") from error


def checked_bool(value: object, what: str) -> bool:
    """A bool; nothing else is one."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{what} is {shown(value)}, but it must be True or False")
    return bool(value)
