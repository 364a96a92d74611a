"""What was asked, made to fit what the model can do: what changes no answer is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..output._tool_schemas import held_tools
from .completion import Asked
from .http.ignored import Ignored
from .reasoning import reasoning_of

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

    from .._context.core import Home

# A line such as `x-anthropic-billing-header: ...`: written for the API that the client thinks it talks to.
_HEADER = re.compile(r"\A\s*x-(?:[a-z0-9]+-)+header:[^\n]*\n?", re.IGNORECASE)


def fitted(asked: Asked, home: Home, ignored: Ignored) -> Asked:
    """The same, as far as the model can do it. Where the server is strict, raises Refused for what it cannot."""
    asked = _reasoning(asked, home, ignored)
    if ignored.strict:
        return asked
    return replace(
        asked,
        messages=_without_headers(asked.messages, ignored),
        grammar_tools=_held(asked, home.chat.format, ignored),
    )


def _held(asked: Asked, form: Format, ignored: Ignored) -> Sequence[Mapping[str, Any]]:
    """The tools as a grammar can hold their calls. The model is shown them as they were."""

    def note(tool: str, keywords: Sequence[str]) -> None:
        what = f"no grammar holds {', '.join(keywords)}; calls are held to the rest, and nobody checks them here"
        ignored.note("schemas of tools", what, tool)

    return held_tools(form, asked.tools, note) if asked.choice != "none" else asked.tools


def without_header(text: str, ignored: Ignored) -> str:
    """A system prompt without a first line that is a header of HTTP. It may change from request to request, and then
    nothing behind it would be in the cache."""
    rest = text if ignored.strict else _HEADER.sub("", text)
    if rest is not text and rest != text:
        ignored.note("a header line in the system prompt", "it is addressed to the API, not to the model")
    return rest


def _without_headers(messages: Sequence[Mapping[str, Any]], ignored: Ignored) -> list[Mapping[str, Any]]:
    return [
        {**message, "content": _content(message["content"], ignored)}
        if message.get("role") == "system" and message.get("content")
        else message
        for message in messages
    ]


def _content(content: Any, ignored: Ignored) -> Any:
    """Parts that are left with nothing to say are left out, and one that stands alone is a text."""
    if isinstance(content, str):
        return without_header(content, ignored)
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return content  # what is wrong with it is said later
    texts = [(part, without_header(part["text"], ignored) if "text" in part else "") for part in content]
    if all(text == part.get("text") for part, text in texts):
        return content
    left = [{**part, "text": text} for part, text in texts if text]
    return left[0]["text"] if len(left) == 1 else left


def _reasoning(asked: Asked, home: Home, ignored: Ignored) -> Asked:
    """How much the model is to think, settled: for the template, where the request itself says nothing to it, and for
    the generation."""
    if home.chat.format.thought is None:
        if asked.thinking or asked.effort not in (None, "none"):
            ignored.leave_out("reasoning_effort", "the model does not reason")
        return replace(asked, thinking=None, effort=None)
    thinking, variables = reasoning_of(asked.thinking, asked.effort, home.chat.tokenizer.template_variables)
    return replace(asked, thinking=thinking, template={**variables, **asked.template})
