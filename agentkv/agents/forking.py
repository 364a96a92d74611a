"""Forks of a turn in flight: each goes on from the point where the turn is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .._context.files import rewind
from .._context.handle import handle_of
from .._types.checks import checked_count
from .._types.run import CallRecord
from .control import Words
from .steering import ANY_CALLS, CallRules
from .turn_log import EarlierCall, TurnLog

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .control import TurnControl
    from .running import RunningTurn
    from .tool_runner import ToolCallRunner
    from .turn import Turn
    from .turn_state import TurnStart, TurnState

Place: TypeAlias = Literal["between", "message", "calls"]
"""Where a turn is: between two messages, in a message, or behind one whose calls run."""


@dataclass(frozen=True, slots=True)
class TurnCopy:
    """A turn in flight, to go on with on a fork of its branch.

    Attributes:
        turn: the turn itself.
        start: its beginning.
        state: its state; the last of its messages with calls is the one whose calls run, where it is there.
        place: where it is.
        length: tokens of its branch.
        rules: rules for the calls of the message under way.
        attempt: how often that message was begun, from 1.
        n_calls: number of calls of the turn, those of the message under way included.
    """

    turn: Turn[Any]
    start: TurnStart
    state: TurnState
    place: Place
    length: int
    rules: CallRules = ANY_CALLS
    attempt: int = 1
    n_calls: int = 0

    @property
    def records(self) -> Mapping[int, CallRecord]:
        """Outcomes of the calls that have ended, by index in the turn."""
        return {index: call.record for index, call in enumerate(self.turn.calls) if call.record is not None}

    def calls_of_message(self) -> dict[int, EarlierCall]:
        """What is known of the calls of the message under way, by index in the turn."""
        whole = self.state.messages[:-1] if self.place == "calls" else self.state.messages
        first = sum(len(message.calls) for message in whole)
        known = ((index, _known(call)) for index, call in enumerate(self.turn.calls) if index >= first)
        return {index: call for index, call in known if call is not None}


async def fork_turn(control: TurnControl, n: int) -> list[RunningTurn[Any]]:
    """Forks a turn in flight; see `SteerableTurn.fork`."""
    from .running import RunningTurn

    count = checked_count(n, "n", 1)
    with control.held():
        copy = (await control.settled())()
        calls = copy.calls_of_message()
        turn, waiting = copy.turn, list(control.waiting)
        branches: list[Branch] = await turn.context.branch.fork(count)
        try:
            for branch in branches:
                await rewind(
                    handle_of(branch), copy.length
                )  # calls may have ended meanwhile, and their results entered
        except BaseException:
            for branch in branches:
                branch.close()
            raise
    forks = []
    for branch in branches:
        fork: RunningTurn[Any] = RunningTurn(branch)
        fork._control.waiting = [Words(words.text, words.at_once) for words in waiting]
        if control.paused:
            fork.pause()
        begin = partial(_begin, turn, branch, dict(calls), turn.log.fork(len(copy.state.messages), copy.n_calls))
        forks.append(fork.start(begin, lambda made: made.go_on(copy)))
    return forks


async def _begin(
    turn: Turn[Any], branch: Branch, calls: dict[int, EarlierCall], log: TurnLog, task: Any, control: TurnControl
) -> Turn[Any]:
    environment = turn.environment
    return await turn.agent._turn(
        branch,
        turn.context.deps,
        turn.steering,
        task.tell,
        environment.ask,
        control,
        log=log,
        is_heard=task.is_heard,
        taken_over=calls,
    )


def _known(call: ToolCallRunner) -> EarlierCall | None:
    """What a fork knows of a call; None for one that it makes itself."""
    if call.record is not None and call.record.status != "cancelled":
        return EarlierCall(record=call.record)
    return EarlierCall(outcome=call.outcome) if call.is_shared else None
