"""Fits a request to what the model can do: fields that change no answer are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..output._tool_schemas import grammar_tools
from .completion import ReplyRequest
from .http.ignored import Ignored
from .reasoning import reasoning_of

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

    from .._context.core import ContextCore

# A line such as `x-anthropic-billing-header: ...`: written for the API that the client thinks it talks to.
_HEADER = re.compile(r"\A\s*x-(?:[a-z0-9]+-)+header:[^\n]*\n?", re.IGNORECASE)


def fitted(reply_request: ReplyRequest, core: ContextCore, ignored: Ignored) -> ReplyRequest:
    """Fits a request to the abilities of the model. Raises ApiError on a strict server for what the model cannot do."""
    reply_request = _reasoning(reply_request, core, ignored)
    if ignored.strict:
        return reply_request
    return replace(
        reply_request,
        messages=_without_headers(reply_request.messages, ignored),
        grammar_tools=_held(reply_request, core.chat.format, ignored),
    )


def _held(reply_request: ReplyRequest, form: Format, ignored: Ignored) -> Sequence[Mapping[str, Any]]:
    """Returns the tools with schemas that a grammar can express. The model is shown the original ones."""

    def note(tool: str, keywords: Sequence[str]) -> None:
        what = f"no grammar holds {', '.join(keywords)}; calls are held to the rest, and nobody checks them here"
        ignored.note("schemas of tools", what, tool)

    return grammar_tools(form, reply_request.tools, note) if reply_request.choice != "none" else reply_request.tools


def without_header(text: str, ignored: Ignored) -> str:
    """Removes a first line that is an HTTP header from a system prompt. It may change with each request, which would
    keep everything behind it out of the cache."""
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
    """Removes headers from message content and drops parts that become empty. A single remaining part becomes a
    string."""
    if isinstance(content, str):
        return without_header(content, ignored)
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return content  # the fault is reported later
    texts = [(part, without_header(part["text"], ignored) if "text" in part else "") for part in content]
    if all(text == part.get("text") for part, text in texts):
        return content
    left = [{**part, "text": text} for part, text in texts if text]
    return left[0]["text"] if len(left) == 1 else left


def _reasoning(reply_request: ReplyRequest, core: ContextCore, ignored: Ignored) -> ReplyRequest:
    """Settles how much the model thinks: template variables, which the request's own override, and the budget of the
    generation."""
    if core.chat.format.thought is None:
        if reply_request.thinking or reply_request.effort not in (None, "none"):
            ignored.leave_out("reasoning_effort", "the model does not reason")
        return replace(reply_request, thinking=None, effort=None)
    thinking, variables = reasoning_of(
        reply_request.thinking, reply_request.effort, core.chat.tokenizer.template_variables
    )
    return replace(reply_request, thinking=thinking, template={**variables, **reply_request.template})
