"""Renders chat messages to text with a model's chat template."""

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
from .roles import GIVES_INSTRUCTIONS, Roles, check_roles
from .tool_results import check_answered, has_plain_ids, with_plain_ids
from .tools_in_words import messages_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentkv_runtime.formats import Format
    from agentkv_runtime.text.added_tokens import ControlledText
    from agentkv_runtime.text.tokenizer import Tokenizer

MOST_SECONDS = 10.0  # time limit of a chat template

# They begin as differently as questions may, so that their common prefix is that of any question.
_QUESTIONS = ("a", "B", "1", "\n", " .", "\u4e2d", "<")

Tools = Sequence[Mapping[str, Any]] | None
Check = Callable[[str], None]


class ReplyBegun(NamedTuple):
    """A prompt in which the assistant speaks: its text, the number of messages before it, and the part of its message
    already said, which ends the text."""

    text: ControlledText
    messages: int
    said: str


class TemplateRenderer:
    """The chat template of one model. `seconds` limits its run time; `check` gets each text before it is processed.

    Methods raise InvalidInput if the template refuses, TemplateTimeout if it takes too long.
    """

    def __init__(self, tokenizer: Tokenizer, find_format: Callable[[], Format]) -> None:
        self._tokenizer = tokenizer
        self._find_format = find_format
        self._roles = Roles(self._tried, self._write_calls)
        self._text = secrets.token_hex(16)  # placeholder of text outside of messages; no content has it
        self._end = secrets.token_hex(16)  # placeholder of the end of a message to continue
        self._closing: list[int] | None = None  # tokens that end an assistant's turn, once computed
        # Findings about the template without tools (False) and with them (True), which may be two templates.
        self._parts: dict[bool, bool] = {}  # whether it takes text parts
        self._texts: dict[bool, bool] = {}  # whether it takes texts
        self._none: dict[bool, bool] = {}  # whether it takes None for the content beside calls
        self._ids: dict[bool, bool] = {}  # whether it takes ids of calls of any form
        self._tells_tools: bool | None = None  # whether the messages must describe tools, once there were some
        self._front: tuple[object, ControlledText] | None = None  # the last rendered front of a conversation

    def closed_already(self, log: Sequence[int], seconds: float) -> int:
        """Number of tokens at the end of a log that are a beginning of the assistant's turn closing."""
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
        """Renders a conversation from its start; or `after_text`, which counts as an assistant's turn that is to be
        closed."""
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
        """Renders a conversation after which the assistant speaks, regardless of the last role. Its own last message is
        continued, without trailing whitespace; an empty one is dropped."""
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
        """Renders a conversation in roles and contents that the template takes.

        If there is no question yet, and the template writes instructions and tools only together with the first one,
        the result is the common beginning for all questions.
        """
        check_roles(messages, self._tokenizer.names_role)
        with template_errors():
            if tools and self._tells_tools is None:
                self._tells_tools = self._must_tell(tools, seconds)
            if self._tells_tools:
                messages, tools = messages_in_words(messages, tools, self._find_format(), self._write_calls), None
            tools = self._roles.tools(tools, seconds)
            asked = any(message["role"] not in GIVES_INSTRUCTIONS for message in messages)
            if asked or (messages and self._roles.takes_alone(tools, seconds)):
                return self._spelled(messages, tools, reply, variables, seconds, check)
            if reply and messages:  # the last message is the question
                *before, last = messages
                return self._spelled([*before, {**last, "role": "user"}], tools, True, variables, seconds, check)
            return self._before_question(messages, tools, variables, seconds, check)

    def takes_calls(self, tools: Tools, seconds: float) -> bool:
        """Returns whether the template writes the calls of a message, not only its content."""
        with template_errors():
            return self._roles.takes("calls", self._roles.tools(tools, seconds), seconds)

    def _before_question(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools,
        variables: Mapping[str, Any],
        seconds: float,
        check: Check,
    ) -> ControlledText:
        """Text that the template writes before the user's first words, the same for any words."""
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
        """Renders messages in roles and forms that the template takes: contents as text or parts, None or empty text
        beside calls, ids of calls, the name of reasoning."""
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
        """Returns whether the template renders a text part as it renders the text."""
        if bool(tools) not in self._parts:
            text = secrets.token_hex(8)
            one, other = (self._made(messages, tools, True, seconds) for messages in _as_both(text))
            self._parts[bool(tools)] = "" != one == other or not self._takes_texts(tools, seconds)
        return self._parts[bool(tools)]

    def _takes_texts(self, tools: Tools, seconds: float) -> bool:
        """Returns whether the template renders a text content, or neither texts nor parts."""
        if bool(tools) not in self._texts:
            text = secrets.token_hex(8)
            one, other = (self._made(messages, tools, True, seconds) for messages in _as_both(text))
            self._texts[bool(tools)] = text in one or text not in other
        return self._texts[bool(tools)]

    def _takes_none(self, tools: Tools, seconds: float) -> bool:
        """Returns whether the template renders calls without content, and not as "None"."""
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
        """Returns whether the template takes call ids of any form, or none."""
        if bool(tools) not in self._ids:
            plain, other, none = (
                self._tried(_called(ids), tools, True, seconds) for ids in ({"id": "call00000"}, {"id": "call_0"}, {})
            )
            self._ids[bool(tools)] = not plain or (other != "" != none)
        return self._ids[bool(tools)]

    def _write_calls(self, content: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Writes a message and its calls in the model's call format; as JSON in tags if that is unknown."""
        try:
            return self._find_format().write(content, calls)
        except FormatError:
            each = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls]
            return "\n".join([*filter(None, [content]), *(f"<tool_call>\n{call}\n</tool_call>" for call in each)])

    def _must_tell(self, tools: Sequence[Mapping[str, Any]], seconds: float) -> bool:
        """Returns whether messages must describe the tools: the template does not, or the chosen format needs it. Logs
        a warning if nothing can describe them, since the model will hardly call them."""
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
        """Renders messages with text contents, in the form that the template takes; "" if it refuses them."""
        taken = messages if self._takes_texts(tools, seconds) else with_text_parts(messages)
        return self._made(taken, tools, reply, seconds)

    def _made(self, messages: Sequence[Mapping[str, Any]], tools: Tools, reply: bool, seconds: float) -> str:
        """Renders messages as they are; "" if the template refuses them."""
        try:
            return self._tokenizer.render(messages, tools, reply, {}, seconds).text
        except TemplateTimeout:
            raise
        except TokenizerError:
            return ""


@contextmanager
def template_errors() -> Iterator[None]:
    """Converts TokenizerError to InvalidInput; TemplateTimeout passes through."""
    try:
        yield
    except TemplateTimeout:
        raise
    except TokenizerError as error:
        raise InvalidInput(str(error)) from error


def _in_common(sequences: Sequence[Sequence[object]]) -> int:
    """Length of the common prefix of all sequences."""
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
