"""Chat messages as text, by the chat template of a model."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from agentkv_runtime.errors import FormatError, TemplateTimeout, TokenizerError

from .._types.errors import InvalidInput
from .._types.log import log
from .messages import text_of, with_empty_content, with_joined_parts, with_reasoning_as, with_text_parts
from .roles import GIVES_INSTRUCTIONS, Roles
from .tool_results import check_answered, has_plain_ids, with_plain_ids
from .tools_in_words import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentkv_runtime.formats import Format
    from agentkv_runtime.text.added_tokens import ControlledText
    from agentkv_runtime.text.tokenizer import Tokenizer

MOST_SECONDS = 10.0  # that a chat template may run

# They begin as differently as questions may, so that what is the same before them is the same before any other.
_QUESTIONS = ("a", "B", "1", "\n", " .", "\u4e2d", "<")

Tools = Sequence[Mapping[str, Any]] | None
Check = Callable[[str], None]


class ReplyBegun(NamedTuple):
    """A prompt in which the assistant speaks: its text, the messages that come before it, and what it has said, which
    is the end of the text."""

    text: ControlledText
    messages: int
    said: str


class Chat:
    """The chat template of one model. `seconds` bound the template; `check` sees a text before it is worked on.

    Everything here raises InvalidInput where the template refuses, TemplateTimeout where it takes too long.
    """

    def __init__(self, tokenizer: Tokenizer, find_format: Callable[[], Format]) -> None:
        self._tokenizer = tokenizer
        self._find_format = find_format
        self._roles = Roles(self._tried, self._write_calls)
        self._text = secrets.token_hex(16)  # stands for text that is no message's; no content spells it
        self._end = secrets.token_hex(16)  # stands for the end of a message that is gone on with
        self._closing: list[int] | None = None  # what ends an assistant's turn, once it was asked for
        # What was found of the template without tools (False) and with them (True), which may be two.
        self._parts: dict[bool, bool] = {}  # whether it takes text parts
        self._texts: dict[bool, bool] = {}  # whether it takes texts
        self._none: dict[bool, bool] = {}  # whether it takes None for the content beside calls
        self._ids: dict[bool, bool] = {}  # whether it takes ids of calls of any form
        self._tells_tools: bool | None = None  # whether the messages must tell of tools, once there were some
        self._front: tuple[object, ControlledText] | None = None  # what was rendered last of a conversation's front

    def closed_already(self, log: Sequence[int], seconds: float) -> int:
        """How many tokens at the end of a log close an assistant's turn, as far as it is closed."""
        if self._closing is None:
            closing = self.render_from([], None, False, {}, seconds, lambda _: None, after_text=True)
            self._closing = self._tokenizer.encode_next(closing)
        most = min(len(log), len(self._closing))
        return next((n for n in range(most, 0, -1) if list(log[-n:]) == self._closing[:n]), 0)

    def render_from(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        reply: bool,
        variables: Mapping[str, Any],
        seconds: float,
        check: Check,
        *,
        after_text: bool,
    ) -> ControlledText:
        """A conversation from its start; or `after_text`, which counts as an assistant's turn that is to be closed."""
        if not after_text:
            return self.render(messages, tools, reply, variables, seconds, check)
        so_far: list[Mapping[str, Any]] = [_user("."), {"role": "assistant", "content": self._text}]
        whole = self.render([*so_far, *messages], tools, reply, variables, seconds, check)
        place = whole.text.rfind(self._text)
        if place < 0:
            raise InvalidInput("the chat template drops the assistant's turns; extend the branch with text instead")
        return whole.between(place + len(self._text), len(whole.text))

    def render_reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        variables: Mapping[str, Any],
        seconds: float,
        check: Check,
        *,
        after_text: bool = False,
    ) -> ReplyBegun:
        """A conversation behind which the assistant speaks, whoever spoke last. After itself it goes on with what it
        said, white space at its end left out; where it said nothing, that message is not there."""
        if not messages:
            raise InvalidInput("nothing was said that the assistant could answer; extend the branch by a message first")
        *before, last = messages
        said = text_of(last).rstrip()
        if last["role"] == "assistant":
            check_answered([last])
        if last["role"] != "assistant" or (before and not said):
            others = messages if last["role"] != "assistant" else before
            return ReplyBegun(
                self.render_from(others, tools, True, variables, seconds, check, after_text=after_text), len(others), ""
            )
        marked = [*before, {**last, "content": said + self._end}]
        whole = self.render_from(marked, tools, False, variables, seconds, check, after_text=after_text)
        end = whole.text.rfind(self._end)
        written = next((text for text in (said, said.lstrip()) if whole.text.endswith(text, 0, max(end, 0))), None)
        if end < 0 or written is None:
            raise InvalidInput(
                "the chat template drops the assistant's last message, or writes another; end with a user's message"
            )
        return ReplyBegun(whole.between(0, end), len(before), written)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        reply: bool,
        variables: Mapping[str, Any],
        seconds: float,
        check: Check,
    ) -> ControlledText:
        """A conversation as the template spells it: in roles and contents that it takes.

        Where nobody has asked anything yet, and the template writes instructions and tools with the first question
        alone, it is what stands before that, whatever is asked.
        """
        with translated():
            if tools and self._tells_tools is None:
                self._tells_tools = self._must_tell(tools, seconds)
            if self._tells_tools:
                messages, tools = told(messages, tools, self._find_format(), self._write_calls), None
            tools = self._roles.tools(tools, seconds)
            asked = any(message["role"] not in GIVES_INSTRUCTIONS for message in messages)
            if asked or (messages and self._roles.takes_alone(tools, seconds)):
                return self._spelled(messages, tools, reply, variables, seconds, check)
            if reply and messages:  # what there is is the question
                *before, last = messages
                return self._spelled([*before, {**last, "role": "user"}], tools, True, variables, seconds, check)
            return self._before_question(messages, tools, variables, seconds, check)

    def takes_calls(self, tools: Tools, seconds: float) -> bool:
        """Does the template write the calls of a message, and not its content alone?"""
        with translated():
            return self._roles.takes("calls", self._roles.tools(tools, seconds), seconds)

    def _before_question(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        variables: Mapping[str, Any],
        seconds: float,
        check: Check,
    ) -> ControlledText:
        """What the template writes before the user's first words."""
        of = [*messages], tools, {**variables}
        if self._front is not None and self._front[0] == of:
            return self._front[1]
        each = seconds / len(_QUESTIONS)
        whole = [
            self._spelled([*messages, _user(question)], tools, False, variables, each, check) for question in _QUESTIONS
        ]
        text = whole[0]
        same = _in_common([text.text for text in whole])
        encoded = [self._tokenizer.encode_rendered(text) for text in whole]
        tokens = encoded[0][: _in_common(encoded)]
        controls = [control.end for control in self._tokenizer.added.controls_in(text) if control.end <= same]
        fronts = [text.between(0, end) for end in (same, len(text.text[:same].rstrip()), max(controls, default=0))]
        front = next((f for f in fronts if self._begins(tokens, f)), text.between(0, 0))
        self._front = of, front
        return front

    def _begins(self, tokens: Sequence[int], text: ControlledText) -> bool:
        encoded = self._tokenizer.encode_rendered(text)
        return encoded == tokens[: len(encoded)]

    def _spelled(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        reply: bool,
        variables: Mapping[str, Any],
        seconds: float,
        check: Check,
    ) -> ControlledText:
        """Messages in roles that the template takes. Text parts are joined where it knows of texts only, no content
        beside calls is an empty one where it knows of texts only, and reasoning has the name that it knows."""
        messages = self._roles.fitted(messages, tools, seconds)
        if any(isinstance(message.get("content"), list) for message in messages) and not self._takes_parts(
            tools, seconds
        ):
            messages = with_joined_parts(messages)
        if any(message.get("content") is None for message in messages) and not self._takes_none(tools, seconds):
            messages = with_empty_content(messages)
        if not self._takes_texts(tools, seconds):
            messages = with_text_parts(messages)
        if not has_plain_ids(messages) and not self._takes_ids(tools, seconds):
            messages = with_plain_ids(messages)
        name = self._tokenizer.reasoning_name
        if name not in (None, "reasoning_content"):
            messages = [with_reasoning_as(name, message) for message in messages]
        return self._tokenizer.render(messages, tools, reply, variables, seconds, check)

    def _takes_parts(self, tools: Tools, seconds: float) -> bool:
        """Does the template make the same of a text part as of the text?"""
        if bool(tools) not in self._parts:
            text = secrets.token_hex(8)
            one, other = (self._made(messages, tools, True, seconds) for messages in _as_both(text))
            self._parts[bool(tools)] = "" != one == other or not self._takes_texts(tools, seconds)
        return self._parts[bool(tools)]

    def _takes_texts(self, tools: Tools, seconds: float) -> bool:
        """Does the template write a content that is a text, or none at all?"""
        if bool(tools) not in self._texts:
            text = secrets.token_hex(8)
            one, other = (self._made(messages, tools, True, seconds) for messages in _as_both(text))
            self._texts[bool(tools)] = text in one or text not in other
        return self._texts[bool(tools)]

    def _takes_none(self, tools: Tools, seconds: float) -> bool:
        """Does the template write a call without content, and no None?"""
        if bool(tools) not in self._none:
            name = "f" + secrets.token_hex(8)
            call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": {}}}
            calling = {"role": "assistant", "content": None, "tool_calls": [call]}
            made = self._tried([_user("."), calling], tools, False, seconds)
            result = {"role": "tool", "name": name, "tool_call_id": "call00000", "content": "."}
            later, empty = (
                self._tried([_user("."), {**calling, "content": content}, result], tools, True, seconds)
                for content in (None, "")
            )
            self._none[bool(tools)] = name in made and "None" not in made + later and bool(later or not empty)
        return self._none[bool(tools)]

    def _takes_ids(self, tools: Tools, seconds: float) -> bool:
        """Does the template take ids of calls as other makers write them, or no ids at all?"""
        if bool(tools) not in self._ids:
            plain, other, none = (
                self._tried(_called(ids), tools, True, seconds) for ids in ({"id": "call00000"}, {"id": "call_0"}, {})
            )
            self._ids[bool(tools)] = not plain or (other != "" != none)
        return self._ids[bool(tools)]

    def _write_calls(self, content: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """A message and its calls as the model writes them; in tags, as JSON, where it is not known how."""
        try:
            return self._find_format().write(content, calls)
        except FormatError:
            each = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls]
            return "\n".join([*filter(None, [content]), *(f"<tool_call>\n{call}\n</tool_call>" for call in each)])

    def _must_tell(self, tools: Sequence[Mapping[str, Any]], seconds: float) -> bool:
        """Does the template tell the model of no tools, or was a format asked for that is told otherwise? Logs where
        nothing can be told: the model will hardly call them."""
        form = self._find_format()
        made = self._tried([_user(".")], self._roles.tools(tools, seconds), True, seconds)
        names = [str(tool.get("function", tool).get("name")) for tool in tools]
        untold = [name for name in names if name not in made]
        if not untold and not form.is_generic:
            return False
        if not form.writes_calls:
            log.warning("the chat template does not tell the model of its tools", untold=untold)
            return False
        return True

    def _tried(self, messages: Sequence[Mapping[str, Any]], tools: Tools, reply: bool, seconds: float) -> str:
        """What the template makes of messages whose contents are texts, nothing where it refuses them."""
        taken = messages if self._takes_texts(tools, seconds) else with_text_parts(messages)
        return self._made(taken, tools, reply, seconds)

    def _made(self, messages: Sequence[Mapping[str, Any]], tools: Tools, reply: bool, seconds: float) -> str:
        """What it makes of messages as they are."""
        try:
            return self._tokenizer.render(messages, tools, reply, {}, seconds).text
        except TemplateTimeout:
            raise
        except TokenizerError:
            return ""


@contextmanager
def translated() -> Iterator[None]:
    """What the tokenizer refuses, as InvalidInput; TemplateTimeout goes through."""
    try:
        yield
    except TemplateTimeout:
        raise
    except TokenizerError as error:
        raise InvalidInput(str(error)) from error


def _in_common(sequences: Sequence[Sequence[object]]) -> int:
    """With how many items all of them begin."""
    places = enumerate(zip(*sequences, strict=False))
    return next((place for place, items in places if len(set(items)) > 1), min(map(len, sequences)))


def _called(ids: Mapping[str, str]) -> list[Mapping[str, Any]]:
    call = {**ids, "type": "function", "function": {"name": "f", "arguments": {}}}
    result = {"role": "tool", "name": "f", "content": "."} | ({"tool_call_id": ids["id"]} if ids else {})
    return [_user("."), {"role": "assistant", "content": "", "tool_calls": [call]}, result]


def _as_both(text: str) -> list[Sequence[Mapping[str, Any]]]:
    return [[_user(text)], with_text_parts([_user(text)])]


def _user(content: object) -> Mapping[str, Any]:
    return {"role": "user", "content": content}
