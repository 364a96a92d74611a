"""Messages that go on from what a branch holds: the conversation is rendered whole, and compared with the tokens.

What the model generated stays token for token where the template spells the same message; what the template writes
otherwise than before (the reasoning of earlier turns, say) is rewritten from there on.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import TemplateTimeout

from ._conversation import Conversation, Entry
from ._errors import InvalidInput
from ._message import calls_before
from ._pieces import Pieces, find_elsewhere, find_generated
from ._roles import GIVES_INSTRUCTIONS
from ._tokens import common_prefix

if TYPE_CHECKING:
    from agentkv_runtime.text.added_tokens import ControlledText
    from agentkv_runtime.text.tokenizer import Tokenizer

    from ._chat import Chat, ReplyBegun
    from ._reply import ReplyReader

MOST_SPANS = 64  # messages of one call whose borders are looked for; each takes a rendering


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a branch is to hold: its first `kept` tokens, then `added`; and the conversation that this is."""

    kept: int
    added: list[int]
    conversation: Conversation | None  # None where the prompt is no messages


class Clock:
    """The time that all renderings of one prompt have together, of the processor of the one thread that they run on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds

    def left(self) -> float:
        """Seconds; never none, so that a template says itself that it takes too long."""
        return max(self._end - time.thread_time(), 1e-3)


class Continuing:
    """One list of messages that goes on from one state of a branch. May run on any thread."""

    def __init__(
        self,
        chat: Chat,
        tokenizer: Tokenizer,
        reader: ReplyReader,
        conversation: Conversation,
        log: array[int],
        clock: Clock,
        check: Callable[[str], None],
    ) -> None:
        self._chat = chat
        self._tokenizer = tokenizer
        self._added = tokenizer.added
        self._reader = reader
        self._log = log
        self._clock = clock
        self._check = check
        if not conversation.follows(len(log)):
            held = chat.closed_already(log, clock.left())
            conversation = conversation.after_text(len(log), len(log) - held)
        self._conversation = conversation
        self._entries = conversation.with_reply(log, reader)

    def extend(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: Mapping[str, Any],
        *,
        speaks: bool = False,
        calls_of: str = "",
        order: Callable[[Sequence[Entry], int], Sequence[int]] = lambda entries, _: range(len(entries)),
    ) -> Continuation:
        """Adds messages; `template` are variables for it, which stay. Raises InvalidInput, TemplateTimeout.

        Args:
            messages: what is added; nothing where only the assistant's turn is to be opened.
            template: see above.
            speaks: the assistant speaks next, whoever spoke last. After itself it goes on with what it said.
            calls_of: what ids of its calls are made of.
            order: of the messages, those that are there first, whose number it gets.
        """
        old = self._conversation
        self._variables = {**old.template, **template}
        there = self._entries[old.first :]
        entries = [*there, *(Entry(message, -1, -1) for message in messages)]
        entries = [entries[place] for place in order(entries, len(there))]
        opened, said = speaks or asks_for_reply(messages), ""
        if speaks:
            text, count, said = self._render_reply(entries)
            entries = entries[:count]
        else:
            text = self._render(entries, opened, self._check)
        pieces, placed = self._placed(text, entries)
        kept = old.start + common_prefix(self._log[old.start :], pieces.tokens)
        length = old.start + len(pieces.tokens)
        if kept == length:
            if kept == len(self._log) and any(message["role"] not in GIVES_INSTRUCTIONS for message in messages):
                raise InvalidInput("the chat template writes nothing for these messages; check their roles")
            kept = max(kept - 1, 0)  # the last token is fed again, for its logits
        end = self._border(entries, text) if opened else len(text.text)
        reply, place = pieces.reply_at(len(text.text) - len(said)) if said else (length, len(text.text))
        entries = self._with_spans(entries, placed, pieces, kept, text, end)
        conversation = Conversation(
            entries=(*self._entries[: old.first], *entries),
            first=old.first,
            start=old.start,
            end=reply,
            tail=pieces.tail.between(0, len(pieces.tail.text) - (len(text.text) - place)),
            opening=self._opening(text.between(0, place), end) if opened else "",
            opened=opened,
            tools=old.tools,
            template=self._variables,
            before=old.cut(kept),
            base=kept,
            calls=calls_before(entry.message for entry in (*self._entries[: old.first], *entries)),
            calls_of=calls_of,
        )
        return Continuation(kept, pieces.tokens[kept - old.start :].tolist(), conversation)

    def _render_reply(self, entries: Sequence[Entry]) -> ReplyBegun:
        old = self._conversation
        return self._chat.render_reply(
            self._messages(entries),
            old.tools,
            self._variables,
            self._clock.left(),
            self._check,
            after_text=old.start > 0,
        )

    def _render(
        self, entries: Sequence[Entry], reply: bool, check: Callable[[str], None] = lambda _: None
    ) -> ControlledText:
        old = self._conversation
        return self._chat.render_from(
            self._messages(entries),
            old.tools,
            reply,
            self._variables,
            self._clock.left(),
            check,
            after_text=old.start > 0,
        )

    def _messages(self, entries: Sequence[Entry]) -> list[Mapping[str, Any]]:
        """As templates get them. Calls that a template leaves out are the text that the model made them with."""
        calling = any(entry.read and entry.read.calls for entry in entries)
        if not calling or self._chat.takes_calls(self._conversation.tools, self._clock.left()):
            return [entry.message for entry in entries]
        return [
            {"role": "assistant", "content": entry.spelled} if entry.read and entry.read.calls else entry.message
            for entry in entries
        ]

    def _placed(self, text: ControlledText, entries: list[Entry]) -> tuple[Pieces, dict[int, Entry]]:
        """The rendering as tokens, with what was generated in its place; and where those entries are now."""
        pieces = Pieces(self._tokenizer, text, self._log, self._conversation)
        reply = self._entries[-1] if len(self._entries) > len(self._conversation.entries) else None
        placed: dict[int, Entry] = {}
        for index, entry in enumerate(entries):
            if entry.given is None:
                continue
            found = self._find(text, entries, index, entry is reply, pieces.done)
            if found is not None:
                placed[index] = pieces.generated(*found)
            elif entry is not reply:
                pieces.rewritten()
        pieces.rest()
        return pieces, placed

    def _find(
        self, text: ControlledText, entries: Sequence[Entry], index: int, is_reply: bool, start: int
    ) -> tuple[Entry, int, int] | None:
        """One entry as a rendering spells it, and where. A reply that the template trims is looked for behind what the
        template wrote before it, ahead of places that look like it."""
        spellings = [entries[index]]
        if is_reply and find_generated(self._added, text, spellings[0], start) is None:
            spellings.append(self._respelled(entries[: index + 1]))
        for find in (find_generated, find_elsewhere):
            for spelling in spellings:
                place = find(self._added, text, spelling, start)
                if place is not None:
                    return spelling, *place
        return None

    def _respelled(self, entries: Sequence[Entry]) -> Entry:
        """The assistant's last message as the template spells it, where it says all that was generated."""
        entry = entries[-1]
        try:
            opening = self._render(entries[:-1], True).text
            text = self._render(entries, False)
        except InvalidInput:
            return entry
        if not text.text.startswith(opening):
            return entry
        ends = [c.start for c in self._added.controls_in(text) if c.id in self._tokenizer.eos_ids]
        end = ends[-1] if ends and ends[-1] >= len(opening) else len(text.text)
        spelled = text.text[len(opening) : end]
        same = self._reader.agree(entry.spelled, spelled, opening, self._conversation.tools)
        return replace(entry, spelled=spelled) if same else entry

    def _with_spans(
        self,
        entries: list[Entry],
        placed: Mapping[int, Entry],
        pieces: Pieces,
        kept: int,
        text: ControlledText,
        end: int | None,
    ) -> list[Entry]:
        """The entries with the tokens that they are now. They end at `end` of the text, as far as that is known."""
        moved = next((i for i, entry in enumerate(entries) if not 0 <= entry.end <= kept), len(entries))
        first = max(moved, len(entries) - MOST_SPANS)
        borders = {0: 0, len(entries): len(text.text) if end is None else end}  # before which entry, where in the text
        for i in range(max(first, self._conversation.start == 0), len(entries)):
            border = self._border(entries[:i], text)
            if border is not None:
                borders[i] = border
        spans: list[Entry] = []
        begin = self._conversation.start
        for i, entry in enumerate(entries):
            if i in borders:
                begin = pieces.token_at(borders[i])
            if i in placed or i < moved:
                spans.append(placed.get(i, entry))
                begin = spans[-1].end
                continue
            after = next(j for j in range(i + 1, len(entries) + 1) if j in borders or j in placed)
            behind = pieces.token_at(borders[after]) if after in borders else placed[after].start
            spans.append(Entry(entry.message, begin, behind, read=entry.read))
        return spans

    def _opening(self, text: ControlledText, end: int | None) -> str:
        """What opens the assistant's turn at the end of a text, from its first control token on."""
        controls = [control.start for control in self._added.controls_in(text)]
        prompt = [start for start in controls if end is not None and start >= end]
        return text.text[(prompt or controls[-1:] or [len(text.text)])[0] :]

    def _border(self, entries: Sequence[Entry], text: ControlledText) -> int | None:
        """Where the part of a rendering that spells the first entries ends, as far as the template says."""
        try:
            part = self._render(entries, False).text
        except TemplateTimeout:
            raise
        except InvalidInput:
            return None
        return len(part) if text.text.startswith(part) else None


def asks_for_reply(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Is it the assistant's turn after these messages?"""
    return bool(messages) and messages[-1]["role"] not in (*GIVES_INSTRUCTIONS, "assistant")
