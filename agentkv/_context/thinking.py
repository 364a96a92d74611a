"""How much of a message is reasoning: what users say of it, for the chat template and for a generation."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentkv_runtime.formats.thought import Markers, Place, Stage

from .._types.errors import InvalidInput
from .._types.show import shown
from ..output._thought import Thought
from ..output.grammar import GrammarSource, MessageGrammar

if TYPE_CHECKING:
    from .._model.generate_options import Thinking
    from .._state.branch_state import History
    from ..output._compiler import Description
    from .core import Home

_SWITCHES = ("enable_thinking", "thinking")


def check_thinking(thinking: Thinking, held: Description | None) -> None:
    """Raises InvalidInput for a budget beside an object of the user's, which knows nothing of thoughts."""
    if thinking is not None and not isinstance(held, GrammarSource | None):
        raise InvalidInput(
            f"thinking goes with a type, kv.Regex, kv.JsonSchema or kv.Grammar as the output, and not with "
            f"{shown(held)}; leave it out, and have the constraint allow the thought"
        )


def thinking_called(said: str | None) -> Thinking:
    """What a word of the command line means. Raises InvalidInput."""
    words = {None: None, "on": True, "off": False}
    if said in words:
        return words[said]
    if not (said and said.isdecimal() and said.isascii() and len(said) < 10):
        raise InvalidInput(f"thinking is {shown(said)}, but it must be on, off, or a number of tokens")
    return int(said)


def template_switches(thinking: Thinking, known: Container[str]) -> dict[str, Any]:
    """The variables, of those that a template knows, that turn its reasoning on or off."""
    return {} if thinking is None else {name: bool(thinking) for name in _SWITCHES if name in known}


def thought_of(home: Home, history: History, thinking: Thinking, held: Description | None) -> Thought | None:
    """The next message of a branch as one whose reasoning has this budget; None where that changes nothing.

    Raises ModelError where the folder says wrongly how it reasons.
    """
    if thinking is None or (markers := home.chat.format.thought) is None:
        return None
    budget = None if thinking is True else int(thinking)
    in_message = held is None or isinstance(held, MessageGrammar)
    if in_message and budget is None:
        return None
    if not in_message and not markers.optional:
        return None  # what comes between a thought and its answer is not known
    assert isinstance(held, GrammarSource | None)
    return Thought(budget, markers, _begun(home, history, len(history)), held)


def thought_in(home: Home, history: History, begin: int, said: Sequence[int]) -> int:
    """How many of the tokens that a branch was given behind its first `begin` are a thought, markers included, before
    an answer."""
    markers = home.chat.format.thought
    assert markers is not None
    return markers.size(_begun(home, history, begin), map(home.chat.spelling.piece, said))


def reasoning_tokens(markers: Markers | None, begun: str, pieces: Iterable[bytes]) -> int:
    """How many of a message's tokens are reasoning, its markers left out; `begun` is what the prompt has of it."""
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


def _begun(home: Home, history: History, length: int) -> Place:
    """Where the message is of which `length` tokens of the branch have the beginning. In a text that is no chat's no
    thought is opened for it."""
    conversation, template, markers = history.conversation, home.chat.format.template, home.chat.format.thought
    assert markers is not None
    said = b"".join(map(home.chat.spelling.piece, history.log[conversation.end : length])).decode("utf-8", "replace")
    text = conversation.tail.text if conversation.tail else said
    begun = template.begun_in(text)
    if not begun and template.reply_in(text):
        return Place(Stage.BEHIND)
    return markers.begun(begun + said if conversation.tail else begun)
