"""Results of tools as the text that a model reads."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from pydantic_core import PydanticSerializationError, to_jsonable_python

if TYPE_CHECKING:
    from .._tokenizer import Tokenizer
    from .tool import OnLong


ERROR = '{"error": '
"""How the text of an error begins."""


class TooLong(Exception):
    """A result of more tokens than its tool allows; says so in words for the model."""


def text_of_result(result: object) -> str:
    """A str as it is, anything else as JSON. Raises TypeError for what has no JSON form."""
    if isinstance(result, str):
        return _spellable(result)
    try:
        plain = to_jsonable_python(result, fallback=_plain)
    except UnicodeDecodeError as error:
        what = f"the tool returned a {type(result).__name__} with bytes that are no text"
        raise TypeError(f"{what}; return what they say, or where they are") from error
    except PydanticSerializationError as error:
        raise TypeError(f"the tool returned a {type(result).__name__}, which has no JSON form") from error
    except ValueError as error:
        what = f"the tool returned a {type(result).__name__} that holds itself, or is nested too deeply"
        raise TypeError(f"{what}; return what has a JSON form") from error
    return _spellable(json.dumps(plain, ensure_ascii=False))


def text_of_error(why: str) -> str:
    """What the model reads where there is no result."""
    return _spellable(json.dumps({"error": why}, ensure_ascii=False))


def bounded(text: str, most: int, on_long: OnLong, tokenizer: Tokenizer) -> str:
    """At most `most` tokens of a text, the mark of the cut included. Raises TooLong where it must not be cut."""
    tokens = tokenizer.encode(text, parse_special=False)
    if len(tokens) <= most:
        return text
    if on_long == "refuse":
        raise TooLong(f"the result has {len(tokens)} tokens, and {most} are allowed; ask for less")
    mark = f" ... [cut: {len(tokens)} tokens, {most} allowed]"
    if len(tokenizer.encode(mark, parse_special=False)) >= most:
        mark = ""
    kept = most
    while kept > 0:  # a text that was cut may have other tokens than it had before
        cut = tokenizer.decode(tokens[:kept], skip_special=False).rstrip("\ufffd") + mark
        over = len(tokenizer.encode(cut, parse_special=False)) - most
        if over <= 0:
            return cut
        kept -= over
    return ""


def _plain(value: object) -> object:
    """Arrays and their numbers, ranges, views of dicts."""
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    if isinstance(value, Collection):
        return list(value)
    raise PydanticSerializationError("it has no JSON form")


def _spellable(text: str) -> str:
    """A lone surrogate has no tokens."""
    return str.encode(text, "utf-8", "replace").decode()
