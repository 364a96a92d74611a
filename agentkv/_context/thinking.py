"""The reasoning budget of a message, for the chat template and for a generation."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentkv_runtime.formats.thought import Markers, Place, Stage

from .._types.errors import InvalidInput
from .._types.show import preview
from ..output._thought import Thought
from ..output.grammar import GrammarSource, MessageGrammar

if TYPE_CHECKING:
    from .._model.generate_options import Thinking
    from .._state.branch_state import BranchState
    from ..output._compiler import Description
    from .core import ContextCore

_SWITCHES = ("enable_thinking", "thinking")


def check_thinking(thinking: Thinking, constraint: Description | None) -> None:
    """Raises InvalidInput for a budget together with a custom constraint, which knows nothing of thoughts."""
    if thinking is not None and not isinstance(constraint, GrammarSource | None):
        raise InvalidInput(
            f"thinking goes with a type, kv.Regex, kv.JsonSchema or kv.Grammar as the output, and not with "
            f"{preview(constraint)}; leave it out, and have the constraint allow the thought"
        )


def thinking_from_word(word: str | None) -> Thinking:
    """Parses a command-line value: on, off or a number of tokens. Raises InvalidInput."""
    words = {None: None, "on": True, "off": False}
    if word in words:
        return words[word]
    if not (word and word.isdecimal() and word.isascii() and len(word) < 10):
        raise InvalidInput(f"thinking is {preview(word)}, but it must be on, off, or a number of tokens")
    return int(word)


def template_switches(thinking: Thinking, known: Container[str]) -> dict[str, Any]:
    """Template variables, out of those the template knows, that turn its reasoning on or off."""
    return {} if thinking is None else {name: bool(thinking) for name in _SWITCHES if name in known}


def thought_of(
    core: ContextCore, state: BranchState, thinking: Thinking, constraint: Description | None
) -> Thought | None:
    """Constraint that gives the branch's next message this reasoning budget; None if that changes nothing.

    Raises ModelError if the model folder has an invalid format.
    """
    if thinking is None or (markers := core.chat.format.thought) is None:
        return None
    budget = None if thinking is True else int(thinking)
    in_message = constraint is None or isinstance(constraint, MessageGrammar)
    if in_message and budget is None:
        return None
    if not in_message and not markers.optional:
        return None  # what comes between a thought and its answer is not known
    assert isinstance(constraint, GrammarSource | None)
    return Thought(budget, markers, _begun(core, state, len(state)), constraint)


def thought_in(core: ContextCore, state: BranchState, begin: int, tokens: Sequence[int]) -> int:
    """Number of `tokens`, which follow the branch's first `begin`, that are a thought before an answer, markers
    included."""
    markers = core.chat.format.thought
    assert markers is not None
    return markers.size(_begun(core, state, begin), map(core.chat.detokenizer.bytes_of, tokens))


def reasoning_tokens(markers: Markers | None, begun: str, pieces: Iterable[bytes]) -> int:
    """Number of reasoning tokens in a message, markers excluded; `begun` is the prompt's part of the message."""
    if markers is None:
        return 0
    count, doubtful, place = 0, 0, markers.begun(begun)
    for piece in pieces:
        before, place = place, markers.read(place, piece)
        doubtful += before.stage is Stage.INSIDE  # it may be of the marker that closes the thought
        if place.stage is Stage.INSIDE and not place.tail:
            count += doubtful
        if not place.tail:
            doubtful = 0
    return count


def _begun(core: ContextCore, state: BranchState, length: int) -> Place:
    """Position in the message that begins within the branch's first `length` tokens. In a text without a chat no
    thought is opened."""
    conversation, template, markers = state.conversation, core.chat.format.template, core.chat.format.thought
    assert markers is not None
    said = b"".join(map(core.chat.detokenizer.bytes_of, state.tokens[conversation.end : length])).decode(
        "utf-8", "replace"
    )
    text = conversation.tail.text if conversation.tail else said
    begun = template.begun_in(text)
    if not begun and template.reply_in(text):
        return Place(Stage.BEHIND)
    return markers.begun(begun + said if conversation.tail else begun)
