"""Renders a conversation whole and compares it with the tokens of a branch.

Generated tokens stay where the template renders the same message. Where the rendering differs from before, as without
the reasoning of earlier turns, the branch is rewritten from there on.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from agentkv_runtime.errors import TemplateTimeout

from .._types.errors import InvalidInput
from .._types.message import calls_before
from .._types.tokens import common_prefix
from .conversation import Conversation, Entry
from .roles import GIVES_INSTRUCTIONS

if TYPE_CHECKING:
    from agentkv_runtime.text.added_tokens import AddedTokens, ControlledText
    from agentkv_runtime.text.tokenizer import Tokenizer

    from .reply import ReplyReader
    from .template import ReplyBegun, TemplateRenderer


_MOST_IN_HEADER = 4  # control tokens that open a turn


class _Piece(NamedTuple):
    start: int  # in the text
    end: int
    token: int  # of the branch
    tokens: Sequence[int]
    written: ControlledText | None  # None for what was generated


class _Anchor(NamedTuple):
    """A control token of a piece: its place in the text, and the number of tokens up to its end."""

    start: int
    end: int
    tokens: int


class TokenSplicer:
    """Builds the tokens of a rendering, reusing the branch's tokens wherever their text is the same."""

    def __init__(self, tokenizer: Tokenizer, text: ControlledText, log: array[int], conversation: Conversation) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.added
        self._text = text
        self._log = log
        self._conversation = conversation
        self._pieces: list[_Piece] = []
        self._anchors: dict[int, list[_Anchor]] = {}  # by the start of their piece
        self._known: int | None = conversation.start  # where in the log what comes next begins, if it is there
        self.done = 0  # characters
        self.tokens = array("i")
        self.tail: ControlledText

    def generated(self, entry: Entry, start: int, end: int) -> Entry:
        """Adds characters `start` to `end` as the generated tokens of an entry. Returns the entry with its new span."""
        given = self._text.between(self.done, start)
        assert entry.rendered_before is not None
        if self._known is not None and self._added.same(given, entry.rendered_before):
            self._add(given, self._log[self._known : entry.start])
        else:
            self._add(given, self._encoded(given, len(self.tokens)))
        now = self._conversation.start + len(self.tokens)
        tokens = self._log[entry.start : entry.end]
        self._pieces.append(_Piece(start, end, now, tokens, None))
        self.tokens.extend(tokens)
        self.done, self._known = end, entry.end
        return replace(entry, start=now, end=now + len(tokens), rendered_before=given)

    def rewritten(self) -> None:
        """Notes that the next generated message is not in the rendering: the branch's tokens after it cannot be
        reused."""
        self._known = None

    def rest(self) -> None:
        """Adds the rest of the text, which the template wrote after the last generated message."""
        self.tail = self._text.between(self.done, len(self._text.text))
        old = self._conversation.tail
        if old is None or self._known is None or self._known > self._conversation.end:
            self._add(self.tail, self._encoded(self.tail, len(self.tokens)))
            return
        known = self._log[self._known : self._conversation.end]
        characters, count = self._shared(old, self.tail, known)
        more = self.tail.between(characters, len(self.tail.text))
        self._add(self.tail, [*known[:count], *self._encoded(more, len(self.tokens))])

    def token_at(self, place: int) -> int:
        """Position in the branch of the token that begins at a character of the text."""
        piece = next((piece for piece in self._pieces if piece.start <= place < piece.end), None)
        if piece is None:
            return self._conversation.start + len(self.tokens)
        if piece.written is None or place == piece.start:
            return piece.token
        anchors = self._anchors_of(piece)
        behind = bisect_left(anchors, place - piece.start, key=lambda anchor: anchor.start)
        begin, count = (anchors[behind - 1].end, anchors[behind - 1].tokens) if behind else (0, 0)
        between = piece.written.between(begin, max(place - piece.start, begin))
        before = piece.token + count
        return before + len(self._encoded(between, before - self._conversation.start))

    def reply_at(self, place: int) -> tuple[int, int]:
        """Position of the token that begins at or spans a character of the rest, and the character that it begins
        with."""
        piece = self._pieces[-1]
        assert piece.written is not None
        inside = place - piece.start
        anchors = [anchor for anchor in self._anchors_of(piece) if anchor.end <= inside]
        begin, count = (anchors[-1].end, anchors[-1].tokens) if anchors else (0, 0)
        between = piece.written.between(begin, inside)
        encoded = self._encoded(between, piece.token + count - self._conversation.start)
        same = next(
            (i for i, pair in enumerate(zip(encoded, piece.tokens[count:], strict=False)) if pair[0] != pair[1]),
            len(encoded),
        )
        if same == len(encoded):
            return piece.token + count + same, place
        spelled = self._tokenizer.decode(encoded[:same], skip_special=False)
        if not between.text.startswith(spelled):
            same, spelled = 0, ""
        return piece.token + count + same, piece.start + begin + len(spelled)

    def _anchors_of(self, piece: _Piece) -> list[_Anchor]:
        if piece.start not in self._anchors:
            assert piece.written is not None
            controls = self._added.controls_in(piece.written)
            ids = self._added.control_ids
            counts = [i + 1 for i, token in enumerate(piece.tokens) if token in ids]
            pairs = zip(controls, counts, strict=True) if len(controls) == len(counts) else ()
            self._anchors[piece.start] = [_Anchor(control.start, control.end, count) for control, count in pairs]
        return self._anchors[piece.start]

    def _add(self, text: ControlledText, tokens: Sequence[int]) -> None:
        token = self._conversation.start + len(self.tokens)
        self._pieces.append(_Piece(self.done, self.done + len(text.text), token, tokens, text))
        self.done += len(text.text)
        self.tokens.extend(tokens)

    def _encoded(self, text: ControlledText, place: int) -> list[int]:
        """Encodes a text for this position among the tokens."""
        start = self._conversation.start
        if not text.text:
            return []
        if place == start == 0:
            return self._tokenizer.encode_rendered(text)
        before = self.tokens[place - 1] if place else self._log[start - 1]
        return self._tokenizer.encode_next(text, after_control=before in self._added.control_ids)

    def _shared(self, old: ControlledText, new: ControlledText, tokens: Sequence[int]) -> tuple[int, int]:
        """Characters and tokens that both texts share, up to the last common control token."""
        length = _common_characters(old.text, new.text)
        pairs = zip(self._added.controls_in(old), self._added.controls_in(new), strict=False)
        same = 0
        for one, other in pairs:
            if one != other or one.end >= length:
                break
            same += 1
            place = one.start
        count = self._after_control(tokens, same)
        return (place, count - 1) if same and count is not None else (0, 0)

    def _after_control(self, tokens: Sequence[int], count: int) -> int | None:
        """Number of tokens up to and including the `count`-th control token; None if there are fewer, or `count` is
        0."""
        ids = self._added.control_ids
        places = (i for i, token in enumerate(tokens) if token in ids)
        found = next(islice(places, count - 1, None), None) if count else None
        return None if found is None else found + 1


def find_generated(added: AddedTokens, text: ControlledText, entry: Entry, start: int) -> tuple[int, int] | None:
    """Span of a generated message in a rendering that writes the same text before it, from `start` on, as when it was
    generated; None otherwise."""
    given = entry.rendered_before
    assert given is not None
    place = start + len(given.text)
    if text.text.startswith(given.text + entry.raw_text, start) and added.same(text.between(start, place), given):
        return place, place + len(entry.raw_text)
    return None


def find_by_turn_markers(added: AddedTokens, text: ControlledText, entry: Entry, start: int) -> tuple[int, int] | None:
    """Span of a generated message in a rendering that differs before it: found by its turn's opening and a following
    control token."""
    controls = [control.start for control in added.controls_in(text)]
    place = text.text.find(entry.raw_text, start) if entry.raw_text and entry.turn_opening else -1
    while place >= 0:
        end = place + len(entry.raw_text)
        before = controls[: bisect_left(controls, place)]
        headers = [begin for begin in before[-_MOST_IN_HEADER:] if begin >= start]
        opened = any(_opens(entry.turn_opening, text.text, begin, place) for begin in headers)
        behind = len(text.text) - len(text.text[end:].lstrip())
        if opened and (behind == len(text.text) or behind in controls):
            return place, end
        place = text.text.find(entry.raw_text, place + 1)
    return None


def _opens(opening: str, text: str, begin: int, place: int) -> bool:
    """Returns whether text[begin:place] is the opening of a turn, or a prefix of it. If whitespace continues the
    opening, it is the template's, even where the reply begins with the same."""
    more = opening[place - begin : place - begin + 1]
    return opening.startswith(text[begin:place]) and not (more.isspace() and text.startswith(more, place))


def _common_characters(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


MOST_SPANS = 64  # messages per call whose boundaries are searched; each costs a rendering


@dataclass(frozen=True, slots=True)
class PromptUpdate:
    """The change that a prompt makes to a branch: its first `kept` tokens stay, then `added` follow; and the resulting
    conversation."""

    kept: int
    added: list[int]
    conversation: Conversation | None  # None for a prompt that is not messages


class RenderBudget:
    """CPU time that all renderings of one prompt share, on the one thread that they run on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds

    def left(self) -> float:
        """Seconds left, at least a millisecond, so that the template itself raises the timeout."""
        return max(self._end - time.thread_time(), 1e-3)


class ConversationRenderer:
    """Renders one list of messages that continues one state of a branch. May run on any thread."""

    def __init__(
        self,
        chat: TemplateRenderer,
        tokenizer: Tokenizer,
        reader: ReplyReader,
        conversation: Conversation,
        log: array[int],
        clock: RenderBudget,
        check: Callable[[str], None],
    ) -> None:
        self._chat = chat
        self._tokenizer = tokenizer
        self._added = tokenizer.added
        self._reader = reader
        self._log = log
        self._clock = clock
        self._check = check
        if not conversation.can_continue_at(len(log)):
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
    ) -> PromptUpdate:
        """Adds messages; `template` adds variables for it, which stay. Raises InvalidInput, TemplateTimeout.

        Args:
            messages: the messages to add; empty to open the assistant's turn only.
            template: variables for the chat template.
            speaks: the assistant speaks next, regardless of the last role. Its own last message is continued.
            calls_of: seed of the ids of its calls.
            order: gives the order of all entries, as indices; its second argument is the number of existing ones.
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
            turn_opening=self._opening(text.between(0, place), end) if opened else "",
            awaits_reply=opened,
            tools=old.tools,
            template=self._variables,
            previous=old.cut(kept),
            previous_length=kept,
            first_call=calls_before(entry.message for entry in (*self._entries[: old.first], *entries)),
            call_seed=calls_of,
        )
        return PromptUpdate(kept, pieces.tokens[kept - old.start :].tolist(), conversation)

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
        """Messages for the template. If it leaves out calls, messages with calls become the text that the model
        generated."""
        calling = any(entry.parsed and entry.parsed.calls for entry in entries)
        if not calling or self._chat.takes_calls(self._conversation.tools, self._clock.left()):
            return [entry.message for entry in entries]
        return [
            {"role": "assistant", "content": entry.raw_text} if entry.parsed and entry.parsed.calls else entry.message
            for entry in entries
        ]

    def _placed(self, text: ControlledText, entries: list[Entry]) -> tuple[TokenSplicer, dict[int, Entry]]:
        """Tokens of the rendering with generated messages spliced in, and the entries found, by index, with their new
        spans."""
        pieces = TokenSplicer(self._tokenizer, text, self._log, self._conversation)
        reply = self._entries[-1] if len(self._entries) > len(self._conversation.entries) else None
        placed: dict[int, Entry] = {}
        for index, entry in enumerate(entries):
            if entry.rendered_before is None:
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
        """One entry as the rendering spells it, and its span in the text. A reply that the template trims is searched
        first behind the text that preceded it, then by turn markers."""
        spellings = [entries[index]]
        if is_reply and find_generated(self._added, text, spellings[0], start) is None:
            spellings.append(self._respelled(entries[: index + 1]))
        for find in (find_generated, find_by_turn_markers):
            for spelling in spellings:
                place = find(self._added, text, spelling, start)
                if place is not None:
                    return spelling, *place
        return None

    def _respelled(self, entries: Sequence[Entry]) -> Entry:
        """The assistant's last message as the template spells it, if that says all that was generated."""
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
        same = self._reader.agree(entry.raw_text, spelled, opening, self._conversation.tools)
        return replace(entry, raw_text=spelled) if same else entry

    def _with_spans(
        self,
        entries: list[Entry],
        placed: Mapping[int, Entry],
        pieces: TokenSplicer,
        kept: int,
        text: ControlledText,
        end: int | None,
    ) -> list[Entry]:
        """The entries with their new token spans. The last one ends at `end` of the text, if that is known."""
        moved = next((i for i, entry in enumerate(entries) if not 0 <= entry.end <= kept), len(entries))
        first = max(moved, len(entries) - MOST_SPANS)
        borders = {0: 0, len(entries): len(text.text) if end is None else end}  # entry index -> start in the text
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
                found = placed.get(i, entry)
                spans.append(entry if found == entry else found)  # what stays is shared with the conversation before
                begin = spans[-1].end
                continue
            after = next(j for j in range(i + 1, len(entries) + 1) if j in borders or j in placed)
            behind = pieces.token_at(borders[after]) if after in borders else placed[after].start
            spans.append(Entry(entry.message, begin, behind, parsed=entry.parsed))
        return spans

    def _opening(self, text: ControlledText, end: int | None) -> str:
        """Text that opens the assistant's turn at the end of a text, from its first control token on."""
        controls = [control.start for control in self._added.controls_in(text)]
        prompt = [start for start in controls if end is not None and start >= end]
        return text.text[(prompt or controls[-1:] or [len(text.text)])[0] :]

    def _border(self, entries: Sequence[Entry], text: ControlledText) -> int | None:
        """Length of the part of a rendering that spells these first entries; None if the template does not show it."""
        try:
            part = self._render(entries, False).text
        except TemplateTimeout:
            raise
        except InvalidInput:
            return None
        return len(part) if text.text.startswith(part) else None


def asks_for_reply(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether the assistant's turn comes after these messages."""
    return bool(messages) and messages[-1]["role"] not in (*GIVES_INSTRUCTIONS, "assistant")
