"""Checks of arguments that users pass, made before anything is changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput
from .message import Message
from .sampling import Sampling
from .show import preview

ChatMessage: TypeAlias = Mapping[str, Any] | Message
Prompt: TypeAlias = str | bytes | Sequence[int] | NDArray[np.integer[Any]] | Sequence[ChatMessage]

P = ParamSpec("P")
R = TypeVar("R")

A_FILE = "the path of a file"
A_FOLDER = "the path of a model folder"
A_MODEL = "the path of a model folder or GGUF file, or the name of a model"
A_PLACE = "the path of a folder"
"""What a path must be, for `checked_path`."""

_calls: dict[str, Collection[str]] = {}
"""Keywords of the public calls whose keywords are checked."""


def known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: calls with an unknown keyword raise InvalidInput that says what may be meant and where that lives."""
    call = function.__qualname__.removesuffix(".__init__")
    _, *own = inspect.signature(function).parameters  # without self or cls
    _calls[call] = known = dict.fromkeys(own)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= known.keys():
            check_keywords(kwargs, call, known)
        return function(*args, **kwargs)

    @wraps(function)
    async def checked_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await checked(*args, **kwargs)  # type: ignore[misc]

    # Who is given it, as a tool say, must see that it is to be awaited.
    return checked_coroutine if inspect.iscoroutinefunction(function) else checked  # type: ignore[return-value]


def check_keywords(given: Iterable[str], call: str, known: Collection[str]) -> None:
    """Raises InvalidInput for the first keyword that is none of those that `call` takes, with advice."""
    for name in given:
        if name not in known:
            from .keywords import advice_on

            raise InvalidInput(advice_on(name, call, {**_calls, call: known}))


def checked_text(value: str | bytes, what: str) -> str:
    """Returns a str that can be encoded as UTF-8; decodes bytes. Raises InvalidInput."""
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
    """Part of an error message: describes a lone surrogate and its remedy."""
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
    """Token ids, each an int with 0 <= id < vocab_size. Raises InvalidInput."""
    try:
        array = np.asarray(ids)
    except Exception:  # its methods may raise anything
        array = np.empty((0, 0))
    if isinstance(ids, bytearray | memoryview):  # NumPy takes their bytes for ids
        raise InvalidInput(f"a prompt is {preview(ids)}; make it text: bytes(...), in UTF-8")
    if isinstance(ids, Mapping | Message):
        raise InvalidInput(f"a prompt is {preview(ids)}, one message; give a list of messages: [message]")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInput(
            f"a prompt is a str, a list of token ids, or a list of chat messages, not {preview(ids)}; "
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
    """Wraps a text in one user message; returns any other prompt unchanged."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str | bytes) else prompt


def checked_count(value: object, what: str, least: int, most: int | None = None) -> int:
    """An int within bounds, both included; bool is not one. Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidInput(f"{what} is {preview(value)}, but it must be an int")
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        short = -(2**64) < value < 2**64  # Python writes no int of thousands of digits
        raise InvalidInput(f"{what} is {value if short else preview(value)}, but it must be {bound}")
    return int(value)


def checked_share(value: object, what: str) -> float:
    """A number from 0 to 1; bool is not one. Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidInput(f"{what} is {preview(value)}, but it must be a number from 0 to 1")
    return float(value)


def checked_items(value: Iterable[Any], what: str) -> list[Any]:
    """The items of an iterable. Raises InvalidInput for any exception of its methods."""
    try:
        return list(value)
    except Exception as error:
        raise InvalidInput(f"{what} cannot be read: {type(error).__name__}: {error}") from error


def checked_stop(stop: object) -> list[str]:
    """Stop strings, each with a UTF-8 form; empty for None. Raises InvalidInput."""
    if stop is None:
        return []
    if isinstance(stop, str | bytes):
        stop = [stop]
    if not isinstance(stop, Iterable):
        raise InvalidInput(f"stop is {preview(stop)}, but it must be a str or a list of str")
    strings = []
    for item in checked_items(stop, "stop"):
        if not isinstance(item, str | bytes) or not item:
            raise InvalidInput(
                f"stop has {preview(item)}, but each stop string must be a str with at least 1 character"
            )
        strings.append(checked_text(item, "stop"))
    return strings


def checked_word(value: object, what: str, words: Sequence[str]) -> str:
    """Returns `value` if it is one of `words`. Raises InvalidInput."""
    if not isinstance(value, str) or value not in words:
        raise InvalidInput(f"{what} is {preview(value)}, but it must be {' or '.join(map(repr, words))}")
    return value


def checked_sampling(sampling: object) -> Sampling:
    """Returns a Sampling; a greedy one for None. Raises InvalidInput."""
    if sampling is None:
        return Sampling()
    if not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling is {preview(sampling)}, but it must be a kv.Sampling{call_it(sampling)}")
    return sampling


def call_it(value: object) -> str:
    """Part of an error message: the advice for a class in the place of one of its instances; empty for others."""
    return f"; call it: {value.__name__}(...)" if isinstance(value, type) else ""


def checked_name(value: object, what: str) -> str:
    """A text of at least one character. Raises InvalidInput."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{what} is {preview(value)}, but it must be a str with at least 1 character")
    return checked_text(value, what)


def checked_path(value: object, what: str, of: str) -> Path:
    """A path, with `~` expanded; it need not exist. Raises InvalidInput that says what it must be (`of`)."""
    text = checked_text(str(value) if isinstance(value, Path) else value, what) if isinstance(value, str | Path) else ""
    if not text:
        raise InvalidInput(f"{what} is {preview(value)}, but it must be {of}")
    if "\0" in text:
        raise InvalidInput(f"{what} is {preview(text)}, but no path has a NUL character")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # a home that there is not
        raise InvalidInput(f"{what} is {preview(text)}: {error}; write the path out") from None


def truth_of(answer: object, of: str) -> bool:
    """Truth value of the result of a user's function. Raises InvalidInput for an awaitable or one without a truth
    value."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidInput(f"{of} returned {preview(answer)}, but it is not awaited; make it a plain function")
    try:
        return bool(answer)
    except Exception as error:
        raise InvalidInput(f"{of} returned {preview(answer)}, but it must be True or False: {error}") from error


def checked_bool(value: object, what: str) -> bool:
    """Returns a bool (or numpy's). Raises InvalidInput for anything else."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{what} is {preview(value)}, but it must be True or False")
    return bool(value)


def check_keeps_files(name: str) -> None:
    """Raises InvalidInput for the argument `name` on a system where its files cannot be written."""
    from agentkv_runtime.folder.locks import check_locks

    try:
        check_locks()
    except OSError as error:
        raise InvalidInput(f"{name} writes files, and {error.strerror}, or leave {name} out") from error


def make_private_folder(path: Path, name: str) -> None:
    """Makes the folder that the argument `name` gives, for its owner alone, where there is none. Blocks. Raises
    InvalidInput where there can be none."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{name} is {path}, where nothing can be kept: {error.strerror}; give the path of a folder, or of one that "
            "can be made"
        ) from error
