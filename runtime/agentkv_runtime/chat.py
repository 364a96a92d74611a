"""Chat templates: the Jinja programs that models ship to spell out a conversation, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentkv_runtime.errors import TokenizerError

__all__ = ["ChatTemplate"]


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's part for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration is a plain set

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


class ChatTemplate:
    """A compiled template. `specials` are the named control tokens that templates refer to, such as `bos_token`."""

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        # Templates are written for these whitespace rules, names and filters.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        self._specials = dict(specials)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TokenizerError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The conversation as text. Raises TokenizerError with the template's own words when it refuses."""
        context = {
            **self._specials,
            **variables,
            "messages": [dict(message) for message in messages],
            "tools": [dict(tool) for tool in tools] if tools else None,
            "documents": variables.get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(context)
        except (jinja2.TemplateError, TypeError, AttributeError, KeyError) as error:
            raise TokenizerError(f"the chat template refused the messages: {error}") from error
