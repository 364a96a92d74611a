"""Chat messages as text: whole conversations, and messages that go on from what a branch already holds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import TemplateTimeout, TokenizerError

from ._errors import InvalidInput
from ._inputs import Message
from ._messages import with_joined_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentkv_runtime.added_tokens import ControlledText
    from agentkv_runtime.tokenizer import Tokenizer

MOST_SECONDS = 10.0  # that a chat template may run

Tools = Sequence[Mapping[str, Any]] | None
Check = Callable[[str], None]


class Chat:
    """The chat template of one model. `seconds` bound the template; `check` sees a text before it is worked on.

    Everything here raises InvalidInput where the template refuses, TemplateTimeout where it takes too long.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._closing: ControlledText | None = None  # what ends an assistant's turn, once it was asked for
        self._parts: bool | None = None  # whether the template takes text parts, once it was asked for

    def begin(self, messages: Sequence[Message], tools: Tools, seconds: float, check: Check) -> ControlledText:
        """A conversation from its start, with the assistant's turn opened where it is the assistant's turn."""
        return self.render(messages, tools, _asks_for_reply(messages), {}, seconds, check)

    def go_on(self, messages: Sequence[Message], seconds: float, check: Check) -> tuple[ControlledText, ControlledText]:
        """What closes an assistant's turn, as the template closes it, and the messages that come after it."""
        reply = secrets.token_hex(16)  # stands for the assistant's turn; no content spells it
        so_far: list[Message] = [_user("."), {"role": "assistant", "content": reply}]
        if self._closing is None:
            self._closing = _after(reply, self.render(so_far, None, False, {}, seconds, check))
        closing = self._closing
        whole = self.render([*so_far, *messages], None, _asks_for_reply(messages), {}, seconds, check)
        added = _after(reply, whole)
        if not added.text.startswith(closing.text):
            return closing.between(0, 0), added
        return closing, added.between(len(closing.text), len(added.text))

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools,
        reply: bool,
        variables: Mapping[str, Any],
        seconds: float,
        check: Check,
    ) -> ControlledText:
        """A conversation as the template spells it. Text parts are joined where it knows of texts only."""
        with translated():
            if any(isinstance(message.get("content"), list) for message in messages) and not self._takes_parts(seconds):
                messages = with_joined_parts(messages)
            return self._tokenizer.render(messages, tools, reply, variables, seconds, check)

    def _takes_parts(self, seconds: float) -> bool:
        """Does the template make the same of a text part as of the text?"""
        if self._parts is None:
            text = secrets.token_hex(8)
            made = []
            for content in (text, [{"type": "text", "text": text}]):
                try:
                    made.append(self._tokenizer.render([_user(content)], None, True, {}, seconds).text)
                except TemplateTimeout:
                    raise
                except TokenizerError:
                    made.append("")
            self._parts = "" != made[0] == made[1]
        return self._parts


@contextmanager
def translated() -> Iterator[None]:
    """What the tokenizer refuses, as InvalidInput; TemplateTimeout goes through."""
    try:
        yield
    except TemplateTimeout:
        raise
    except TokenizerError as error:
        raise InvalidInput(str(error)) from error


def _user(content: object) -> Message:
    return {"role": "user", "content": content}


def _asks_for_reply(messages: Sequence[Message]) -> bool:
    return messages[-1]["role"] not in ("system", "developer", "assistant")


def _after(reply: str, text: ControlledText) -> ControlledText:
    place = text.text.rfind(reply)
    if place < 0:
        raise InvalidInput("the chat template drops the assistant's turns; extend the branch with text instead")
    return text.between(place + len(reply), len(text.text))
