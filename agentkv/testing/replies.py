"""Scripted replies: a real Context whose generations follow a test's script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from .. import models
from .._context.context import Context
from .._context.handle import core_of
from .._types.errors import InvalidInput
from .._types.show import preview, safe_str
from ._script import Script


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool in a scripted reply. Made by `kv.testing.call`."""

    name: str
    arguments: dict[str, Any]


Reply: TypeAlias = str | Call | Sequence[str | Call]


def call(name: str, /, **arguments: Any) -> Call:
    """Makes a tool call for a script of `kv.testing.replies`."""
    return Call(name, arguments)


@asynccontextmanager
async def replies(
    script: Sequence[Reply] | Callable[[str], Reply], model: str | Path | None = None, **options: Any
) -> AsyncIterator[Context]:
    """Opens a Context whose generations write the script's replies, in the order in which they begin.

    A reply is the output of one generation: text, calls of tools (`kv.testing.call`), or both in a list. Text is as the
    model would write it, including markers that it spells out. Where several branches answer at once, their order is
    not known: pass a function, which gets the branch's text so far, control tokens included, and returns the reply. It
    runs on the thread of the step loop.

    A generation still ends where it must: at max_tokens, at a stop string, at a full context. One whose grammar does
    not allow the reply (an unknown tool, an argument that its schema refuses, a call in a turn's last message) fails
    with StepFailed; one for which no reply is left raises InvalidInput.

    Args:
        script: the replies, or a function that makes them.
        model: a model folder; None for the packaged nano.
        options: options of `Context.open`.

    Raises:
        InvalidInput: a script that is neither.
        AssertionError: the block ended without an error, and replies are left over.
    """
    if not callable(script) and (isinstance(script, str) or not isinstance(script, Sequence)):
        raise InvalidInput(
            f"script is {preview(script)}, but it must be a list of replies, or a function that makes them"
        )
    async with Context.open(models.nano() if model is None else model, **options) as context:
        written = Script(core_of(context), script, _spelled)
        core_of(context).compiler = written
        yield context
        if written.left:
            raise AssertionError(f"replies of the script that nobody asked for: {written.left}")


def _spelled(reply: object, write: Callable[[str, Sequence[tuple[str, dict[str, Any]]]], str]) -> str:
    """Text of a reply as the model would write it. Raises InvalidInput."""
    parts = [reply] if isinstance(reply, str | Call) else reply
    if not isinstance(parts, Sequence) or not all(isinstance(part, str | Call) for part in parts):
        raise InvalidInput(
            f"the script has {preview(reply)}, but a reply is text, a kv.testing.call, or a list of these"
        )
    text = "".join(part for part in parts if isinstance(part, str))
    calls = [(part.name, part.arguments) for part in parts if isinstance(part, Call)]
    try:
        return write(text, calls) if calls else text
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the script has {preview(reply)}, which has no JSON form: {safe_str(error)}") from error
