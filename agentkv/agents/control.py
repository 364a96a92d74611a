"""Control of a turn in progress: words that enter, pauses, the end before its end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio

from .._aio.scope import move_on_after
from .._types.checks import checked_text
from .._types.errors import ContextClosed, InvalidInput, TurnNotRunning, TurnStopped
from .._types.show import preview

if TYPE_CHECKING:
    from .forking import TurnCopy
    from .running import RunningTurn


class Words:
    """Result of `steer`. The words wait for their place already; awaiting this waits until they are on the branch.

    Raises TurnNotRunning where the turn ended before, and the error of a branch that has no room for them.

    Attributes:
        text: the words.
        at_once: whether the message under way makes room for them.
    """

    def __init__(self, text: str, at_once: bool) -> None:
        """Private: see `SteerableTurn.steer`."""
        self.text = text
        self.at_once = at_once
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext  # scope of those who wait
        self._settled = anyio.Event()
        self._error: Exception | None = None

    @property
    def entered(self) -> bool:
        """Whether they are on the branch."""
        return self._settled.is_set() and self._error is None

    def settle(self, error: Exception | None = None) -> None:
        """Private: they are on the branch, or never will be."""
        self._error = error
        self._settled.set()

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if not self._settled.is_set():
            with self.waiting():
                await self._settled.wait()
        if self._error is not None:
            raise self._error


class Ending:
    """Result of `stop`. Awaiting it waits until the turn has ended, and its branch is free."""

    def __init__(self, over: anyio.Event) -> None:
        """Private: see `SteerableTurn.stop`."""
        self._over = over

    def __await__(self) -> Generator[Any, None, None]:
        return self._over.wait().__await__()


class TurnControl:
    """What a turn and those who steer it share.

    Attributes:
        waiting: words that are not on the branch yet, in order.
        ended: whether the turn takes up nothing any more.
        stopped: whether the turn was told to end.
        keep: whether the work of a turn that ends early stays on the branch; None where nobody said so yet.
        over: set once the turn has ended, and its branch is free.
        check_event_loop: raises WrongEventLoop elsewhere than on the turn's; known once its branch is.
    """

    def __init__(self) -> None:
        self.waiting: list[Words] = []
        self.ended = False
        self.stopped = False
        self.keep: bool | None = None
        self.over = anyio.Event()
        self.check_event_loop: Callable[[], None] = lambda: None
        self._left = False
        self._paused = False
        self._holds = 0  # forks that are being made
        self._moved = anyio.Event()  # set, and replaced, when any of these changes
        self._point: Callable[[], TurnCopy] | None = None  # copies the turn, where that is possible
        self._end_part: Callable[[], None] | None = None  # of the message under way
        self._bounds: move_on_after | None = None

    @property
    def paused(self) -> bool:
        """Whether no token is generated and no call begins."""
        return self._paused

    @property
    def interrupts(self) -> bool:
        """Whether words wait that enter at once."""
        return any(words.at_once for words in self.waiting)

    def steer(self, text: str, at_once: bool) -> Words:
        """See `SteerableTurn.steer`."""
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"text is {preview(text)}, but it must be the words of a user's message")
        words = Words(checked_text(text, "text"), bool(at_once))
        self.check_event_loop()
        self.check_runs("steer")
        self.waiting.append(words)
        if at_once:
            self._end()
        return words

    def pause(self) -> None:
        """See `SteerableTurn.pause`."""
        self.check_event_loop()
        self.check_runs("pause")
        if not self._paused:
            self._paused = True
            if self._bounds is not None:
                self._bounds.stop_clock()
            self._end()

    def resume(self) -> None:
        """See `SteerableTurn.resume`."""
        self.check_event_loop()
        if self._paused:
            self._paused = False
            self._move()
            if self._bounds is not None:
                self._bounds.start_clock()

    def stop(self, keep: bool | None) -> None:
        """See `SteerableTurn.stop`."""
        if keep is not None and not isinstance(keep, bool):
            raise InvalidInput(f"keep is {preview(keep)}, but it must be True, False, or None for the turn's own")
        self.check_event_loop()
        if not self.ended and not self.stopped:
            self.keep = self.keep if keep is None else keep
            self._cancel()

    def begin(self, keep: bool) -> None:
        """The turn begins; `keep` is what it was asked to, unless it was stopped before."""
        self.keep = keep if self.keep is None else self.keep

    def leave(self) -> None:
        """The Context is left: the turn ends with that."""
        if not self.ended and not self.stopped:
            self._left = True
            self._cancel()

    async def gate(self, point: Callable[[], TurnCopy] | None = None) -> None:
        """Waits while the turn is paused or held. `point` copies the turn meanwhile."""
        with self.at(point):
            while self._paused or self._holds:
                await self._moved.wait()

    @contextmanager
    def at(self, point: Callable[[], TurnCopy] | None) -> Iterator[None]:
        """Scope in which `point` copies the turn; None where others say so."""
        if point is None:
            yield
            return
        self._point = point
        self._move()
        try:
            yield
        finally:
            self._point = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Scope in which the turn goes no further than to where it can be copied. Raises TurnNotRunning."""
        self.check_event_loop()
        self.check_runs("fork")
        self._holds += 1
        self._end()
        try:
            yield
        finally:
            self._holds -= 1
            self._move()

    async def settled(self) -> Callable[[], TurnCopy]:
        """Waits until the turn can be copied; returns what copies it. Raises TurnNotRunning where it ends before."""
        while self._point is None:
            self.check_runs("fork")
            await self._moved.wait()
        return self._point

    def bounds(self, seconds: float) -> move_on_after:
        """Scope of work that ends after this time, pauses left out, and with `stop`."""
        self._bounds = bounds = move_on_after(seconds)
        if self.paused:
            bounds.stop_clock()
        if self.stopped:
            bounds.cancel()
        return bounds

    def check_stopped(self) -> None:
        """Raises TurnStopped where the turn was told to end, ContextClosed where its Context was left."""
        if self._left:
            raise ContextClosed("the Context was left while the turn ran; await the turn inside its block")
        if self.stopped:
            raise TurnStopped("the turn was stopped; `run` of this error has what it did")

    @contextmanager
    def generating(self, end: Callable[[], None]) -> Iterator[None]:
        """Scope of one part of a message; `end` ends that part for a pause, and for words that enter at once."""
        self._end_part = end
        try:
            if self._paused or self._holds or self.interrupts:
                end()
            yield
        finally:
            self._end_part = None

    def settle(self, words: list[Words], error: Exception | None = None) -> None:
        """These words are on the branch, or never will be."""
        for each in words:
            self.waiting.remove(each)
            each.settle(error)

    def end(self) -> list[Words]:
        """Takes up nothing any more. Returns the words that never entered."""
        self.ended = True
        self._move()
        lost = list(self.waiting)
        self.settle(lost, TurnNotRunning("the turn ended before these words could enter; ask them in another turn"))
        return lost

    def _cancel(self) -> None:
        self.stopped = True
        if self._bounds is not None:
            self._bounds.cancel()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    def _end(self) -> None:
        if self._end_part is not None:
            self._end_part()

    def check_runs(self, verb: str) -> None:
        """Raises TurnNotRunning where the turn has ended."""
        if self.ended or self.stopped:
            raise TurnNotRunning(f"{verb}: the turn has ended; begin another one on its branch")


class SteerableTurn:
    """A turn in progress that others steer: `kv.RunningTurn` and `kv.AgentStream`."""

    def __init__(self) -> None:
        """Private: see `Agent.start` and `Agent.stream`."""
        self._control = TurnControl()

    @property
    def paused(self) -> bool:
        """Whether the turn is paused."""
        return self._control.paused

    def steer(self, text: str, at_once: bool = False) -> Words:
        """Has words enter the turn as a user's message, behind those that were said before. Synchronous.

        They enter between two messages of the model: behind the results of calls, and where the message under way turns
        out to be the answer, behind that: the turn then goes on with another message, if `max_rounds` has one left.

        With `at_once` the message under way is taken back to the end of its last whole sentence, or of the last call
        that has begun, whichever comes later; without either it is taken back entirely. The words enter there, and the
        same round goes on. While only tools run, and before the first message, they enter as without it.

        `await run.steer(...)` also waits until the words are on the branch. Those that the turn waits for should not
        await this: its tools and hooks.

        Raises:
            TurnNotRunning: the turn has ended; when awaited, it ended before the words could enter.
            InvalidInput: no words.
        """
        return self._control.steer(text, at_once)

    def pause(self) -> None:
        """Pauses the turn: no token is generated and no call begins until `resume`. Synchronous and idempotent.

        Calls that run go on to their end. Nothing of a message is lost: `resume` goes on behind its last token, and
        its tokens are those of an undisturbed turn. `max_seconds` does not count a pause.

        Raises TurnNotRunning where the turn has ended.
        """
        self._control.pause()

    def resume(self) -> None:
        """Ends a pause. Synchronous and idempotent."""
        self._control.resume()

    def stop(self, keep: bool | None = None) -> Ending:
        """Ends the turn: whoever awaits it, or reads its events, gets TurnStopped, whose `run` has what it did.
        Synchronous and idempotent; does nothing to a turn that has ended.

        `await run.stop()` also waits until the turn has ended.

        Args:
            keep: whether the work so far stays on the branch, as with `keep_partial`; None as the turn was begun.

        Raises InvalidInput for another `keep`.
        """
        self._control.stop(keep)
        return Ending(self._control.over)

    async def fork(self, n: int) -> list[RunningTurn[Any]]:
        """Forks the turn in flight: n turns on forks of its branch, all of which go on from where it is, with the text
        of the message under way, and so does this one. Their records are those of the whole turn.

        Calls that have ended are not made again. Those that run are shared, so that all read one outcome, or made
        again by each fork, as their tool says (`kv.tool(on_fork=...)`). Words that wait enter each of them; forks of a
        paused turn are paused. Forks are not in a journal.

        Not to be awaited by the turn's own hooks, which it waits for.

        Raises:
            TurnNotRunning: the turn has ended.
            TooManyBranches: more live branches than the cache supports.
        """
        from .forking import fork_turn

        return await fork_turn(self._control, n)
