"""Turns that go on in another process, on a restored branch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import Unpack

from .._types.errors import InvalidInput
from .._types.run import MISSING
from .approval import Approve
from .stream import AgentStream
from .tool_runner import ignore_event

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._types.run import CallRecord, Run
    from .agent import Agent
    from .control import TurnControl
    from .tool_runner import Ask, Emit, Heard, TakeBack
    from .turn import Turn
    from .turn_log import TurnLog
    from .turn_state import RecordedTurn

Out = TypeVar("Out")


class TakenUp(NamedTuple):
    """A turn that is about to go on.

    Attributes:
        recorded: what an earlier process recorded of it.
        branch: its branch, as it was then.
        log: its record from now on.
    """

    recorded: RecordedTurn
    branch: Branch
    log: TurnLog

    @asynccontextmanager
    async def closed_after(self) -> AsyncIterator[None]:
        """Scope of all that is done with it. Nobody else has its branches: their cells are for others then."""
        async with self.branch, self.recorded.before or nullcontext():
            yield


async def resume_turn(agent: Agent[Any, Out], taken: TakenUp, deps: Any, ask: Ask) -> Run[Out]:
    """Goes on with a turn to its end. Raises as `Agent.run`."""
    turn = await _turn_of(agent, taken, deps, ignore_event, ask)
    return await turn.resume(taken.recorded)


def stream_resumed(
    agent: Agent[Any, Out], take_up: Callable[[], Awaitable[TakenUp]], deps: Any, approve: Approve | None, keep: bool
) -> AgentStream[Out]:
    """Goes on with a turn that `take_up` gives, as a stream of its events."""
    closing = AsyncExitStack()
    recorded: list[RecordedTurn] = []

    async def begin(emit: Emit, ask: Ask, take_back: TakeBack, control: TurnControl) -> Turn[Out]:
        taken = await take_up()
        recorded.append(taken.recorded)
        async with AsyncExitStack() as made:
            await made.enter_async_context(taken.closed_after())
            turn = await _turn_of(agent, taken, deps, emit, ask, control, take_back=take_back)
            closing.push_async_exit(made.pop_all())
        return turn

    async def play(turn: Turn[Out]) -> Run[Out]:
        async with closing:
            return await turn.resume(recorded[0])

    return AgentStream(begin, play, approve, waits=keep)


def recorded_output(
    agent: Agent[Any, Out], answer: str, calls: Collection[CallRecord], call_format: Any, has_tools: bool
) -> Out:
    """Output of a turn that is finished, from the text of its answer and its calls. Raises OutputInvalid."""
    output = agent.steering.answer(calls)
    if output is MISSING:
        output = agent.answers.read(answer, call_format, has_tools)
    return output  # type: ignore[no-any-return]


async def check_tools(agent: Agent[Any, Any], called: Collection[str]) -> None:
    """Raises InvalidInput where the agent lacks a tool that its turn has called."""
    names = {tool.name for tool in await agent._all_tools()}
    if missing := sorted(set(called) - names):
        raise InvalidInput(
            f"the turn has called {', '.join(missing)}, which the agent does not have; resume it with the agent that "
            "began it"
        )


async def _turn_of(
    agent: Agent[Any, Out],
    taken: TakenUp,
    deps: Any,
    emit: Emit,
    ask: Ask,
    control: TurnControl | None = None,
    **heard: Unpack[Heard],
) -> Turn[Out]:
    steering = agent.steering.with_saved(taken.recorded.start.steering)
    return await agent._turn(taken.branch, deps, steering, emit, ask, control, log=taken.log, **heard)
