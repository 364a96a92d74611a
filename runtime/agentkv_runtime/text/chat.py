"""Chat templates: the Jinja programs that models ship to spell out a conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes

from agentkv_runtime.errors import TokenizerError
from agentkv_runtime.text.added_tokens import AddedTokens, ControlledText
from agentkv_runtime.text.provenance import STAND_INS, Masked, masked_kind
from agentkv_runtime.text.sandbox import MOST_CHARACTERS, Sandbox, time_limit

__all__ = ["REASONING_NAMES", "ChatTemplate"]

REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message under which templates read its reasoning: most families, gpt-oss, others."""


class ChatTemplate:
    """A compiled template. `specials` are the named control tokens that templates refer to, such as `bos_token`."""

    def __init__(self, source: str, specials: Mapping[str, str], added: AddedTokens) -> None:
        self._specials = dict(specials)
        self._added = added
        self._source = source
        self._template, constants = _compiled(source)
        self._constants = [*constants, *specials.values()]
        # Does it write a control token in pieces, so that content might supply one?
        self._writes_pieces = added.may_begin_at_end_of(self._constants)

    def writes(self, text: str) -> bool:
        """Whether one of the template's constants contains `text`."""
        return any(text in constant for constant in self._constants)

    def names(self, role: str) -> bool:
        """Whether one of the template's constants is `role`, as of a template that asks for it."""
        return role in self._constants

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names that the template reads and does not define: `messages`, `tools`, and options of its own."""
        return frozenset(meta.find_undeclared_variables(Sandbox().parse(self._source)))

    @cached_property
    def reasoning_name(self) -> str | None:
        """Key of a message under which the template reads its reasoning; None if it reads none."""
        looked_up = (name for name in REASONING_NAMES if re.search(rf"[.'\"]{name}\b", self._source))
        return next(looked_up, None)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        seconds: float,
        check: Callable[[str], None],
    ) -> ControlledText:
        """The conversation as text, with the control tokens that the template wrote.

        Strings of messages, tools and documents are content: a control token that they spell is plain text. The
        template renders the content unchanged, with one exception: where content spells a control token and the
        template cannot be followed, it sees another character in the token's place.

        `check` gets the rendered text before control tokens are looked for, and may raise. Most templates want None
        where there are no tools, some an empty list.

        Raises TokenizerError with the template's own words when it refuses, TemplateTimeout after `seconds`.
        """
        given = {
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": variables.get("documents"),
        }
        now = datetime.now()
        frame = {
            **self._specials,
            **variables,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": now.strftime,
        }
        text = self._run({**frame, **given}, seconds)
        check(text)
        try:
            content: list[str] = []
            _gather_texts(_content(given), content)
            caller = [value for value in variables.values() if isinstance(value, str)]
            if not self._writes_pieces and not self._added.may_begin_in([*content, *caller]):
                return ControlledText(text)
            kind = self._kind([text, *content])
        except ValueError as error:
            raise TokenizerError(f"the messages cannot be told from the chat template: {error}") from error
        return self._controlled(text, self._run({**frame, **_covered(given, kind)}, seconds), kind, content)

    def _run(self, names: Mapping[str, Any], seconds: float) -> str:
        chunks, size = [], 0
        try:
            with time_limit(seconds):
                for chunk in self._template.root_render_func(self._template.new_context(dict(names))):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > MOST_CHARACTERS:
                        raise TokenizerError(
                            f"the chat template writes more than {MOST_CHARACTERS} characters; give fewer messages"
                        )
            text = "".join(chunks)
            text.encode("utf-8")
        except TokenizerError:
            raise
        except Exception as error:  # templates are programs: they divide by zero and recurse
            why = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
            raise TokenizerError(f"the chat template refused the messages: {why}") from error
        return text

    def _kind(self, texts: Sequence[str]) -> type[Masked]:
        together = "".join(texts)
        look_alikes = self._added.look_alikes(together)
        if not look_alikes and not STAND_INS.search(together):
            return self._usual_kind
        return masked_kind(self._added.alphabet | look_alikes, {*together, *self._source})

    @cached_property
    def _usual_kind(self) -> type[Masked]:
        return masked_kind(self._added.alphabet, set(self._source))

    def _controlled(self, text: str, masked: str, kind: type[Masked], content: Sequence[str]) -> ControlledText:
        controls = self._added.find(masked)
        bare: str = kind.bare(masked)
        if bare == text:
            return ControlledText(text, controls)
        # The template saw the stand-ins for what they are. Without a control token in the content it does not matter.
        if not self._added.spelled_in(content):
            found = self._added.find(text)
            if [control.id for control in found] == [control.id for control in controls]:
                return ControlledText(text, found)
        return ControlledText(bare, controls)


@lru_cache(maxsize=32)  # that of a model is compiled once, not for each of its Contexts
def _compiled(source: str) -> tuple[jinja2.Template, Sequence[str]]:
    """A template, which keeps nothing of what it renders, and its constants."""
    environment = Sandbox()
    try:
        return environment.from_string(source), tuple(_constants(environment.parse(source)))
    except Exception as error:
        raise TokenizerError(f"the chat template does not compile: {type(error).__name__}: {error}") from error


def _constants(tree: nodes.Template) -> Iterator[str]:
    """Yields the literal texts and string constants of a template."""
    for written in tree.find_all(nodes.TemplateData):
        yield written.data
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            yield constant.value


def _is_role(key: object, value: object) -> bool:
    """Whether this is a role that a template may know. Some spell control tokens with it, so it is not content."""
    return key == "role" and isinstance(value, str) and value.isascii() and re.fullmatch(r"[\w-]+", value) is not None


def _content(given: Mapping[str, Any]) -> list[Any]:
    messages = [{k: v for k, v in message.items() if not _is_role(k, v)} for message in given["messages"]]
    return [messages, given["tools"], given["documents"]]


def _gather_texts(value: Any, texts: list[str]) -> None:
    """Appends every str in a value to `texts`, keys of mappings too."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather_texts(item, texts)
    elif isinstance(value, (dict, Mapping)):  # most are a dict, which is quickly seen
        for key, item in value.items():
            _gather_texts(key, texts)
            _gather_texts(item, texts)


def _covered(given: Mapping[str, Any], kind: type[Masked]) -> dict[str, Any]:
    messages = [
        {kind.cover(key): value if _is_role(key, value) else kind.cover(value) for key, value in message.items()}
        for message in given["messages"]
    ]
    return {"messages": messages, "tools": kind.cover(given["tools"]), "documents": kind.cover(given["documents"])}
