"""State of a turn outside of its process: enough to go on with it on a branch that has its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._context.handle import handle_of
from .._context.lease import EarlierWork
from .._types.checks import Prompt
from .._types.run import CallRecord, CallRequest
from .steering import CallRules

if TYPE_CHECKING:
    from .._context.branch import Branch
    from ..workspaces.version import Version


@dataclass(frozen=True, slots=True)
class TurnStart:
    """Beginning of a turn.

    Attributes:
        prompt: the question; None where the branch holds it.
        once: whether the turn is one round, as of `Agent.step`.
        keep: whether its work stays on the branch when it ends early.
        instructions: instructions of its agent.
        tools: names of its tools.
        steering: rules for its messages, by name; a `tool_choice` that is a function is left out.
    """

    prompt: Prompt | None
    once: bool
    keep: bool
    instructions: str
    tools: Sequence[str]
    steering: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """A message with calls of a turn; without calls, words of `steer` that have entered.

    Attributes:
        calls: its calls, in order.
        rules: rules for its calls.
        is_over: whether it called the final tool.
    """

    calls: tuple[CallRequest, ...]
    rules: CallRules
    is_over: bool


@dataclass(frozen=True, slots=True)
class TurnState:
    """State of a turn behind a complete message, before the results of its calls, or behind words that have entered.

    Attributes:
        base: tokens of the branch before the turn that are still there.
        n_messages: messages of the branch before the turn.
        n_messages_dropped: number of them that were dropped to make room.
        begins: tokens of the branch before the message.
        rounds: number of messages begun.
        generated: number of tokens generated.
        taken_back: number of them that were rolled back.
        text: content of the message.
        was_asked: whether the model was asked to come to an end.
        useful: tokens of the branch after the last calls that ran, and generated tokens that stayed until then; None
            where no calls ran.
        warnings: problems so far.
        done_before: tools called since the question, by earlier turns.
        messages: the messages with calls, and words, this one included.
    """

    base: int
    n_messages: int
    n_messages_dropped: int
    begins: int
    rounds: int
    generated: int
    taken_back: int
    text: str
    was_asked: bool
    useful: tuple[int, int] | None
    warnings: tuple[str, ...]
    done_before: tuple[str, ...]
    messages: tuple[SavedMessage, ...]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn that an earlier process began and did not end.

    Attributes:
        start: its beginning.
        state: its state behind its last complete message with calls; None before the first.
        records: outcomes of calls, by index in the turn.
        before: a branch as it was before the turn; None where the turn's branch has all of its tokens.
        files: the version of the branch's files before the turn; None without a workspace.
    """

    start: TurnStart
    state: TurnState | None
    records: Mapping[int, CallRecord]
    before: Branch | None = None
    files: Version | None = None

    def earlier_work(self) -> EarlierWork | None:
        """The work that the turn's branch holds; None before the first message."""
        if self.state is None:
            return None
        before = None if self.before is None else handle_of(self.before)
        return EarlierWork(self.state.base, self.state.n_messages_dropped, before, self.files)
