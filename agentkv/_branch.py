"""One line of history over the shared cache: tokens, KV and sampler state together."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import anyio
import numpy as np
from numpy.typing import NDArray

from ._closing import Closing
from ._commands import Job, check_finished
from ._errors import BranchBusy, BranchClosed, InvalidInput
from ._extending import Extended, extend_by
from ._generating import Generating
from ._generation import Choice
from ._hold import acting_hold
from ._inputs import Prompt, checked_count, checked_name
from ._keeping import Keeping
from ._mark import Mark, make_mark, place_of
from ._message import Message
from ._overflow import Overflow, checked_overflow, with_room
from ._overflow_policies import Stop
from ._record import BranchRecord
from ._shown import shown

if TYPE_CHECKING:
    from ._commands import Worker
    from ._context import Context
    from ._engine import Finished
    from ._home import Home

MOST_FORKS = 2**31 - 1


class Branch(Generating, Keeping):
    """One line of history. Made by `Context.branch` and `Branch.fork`.

    A branch does one thing at a time: a verb on a branch that still runs something, an agent's turn included, raises
    BranchBusy (`fork`, `mark` and `close` do not mind). Every verb raises BranchClosed after `close` and ContextClosed
    after the Context was left.
    A cancelled verb is settled before the cancellation goes on: a cancelled `extend` leaves the branch as it was, a
    cancelled `generate` keeps the tokens it made.

    A branch that is no longer referenced is closed.
    """

    __slots__ = (
        "__weakref__",
        "_history",
        "_hold",
        "_home",
        "_id",
        "_loop",
        "_record",
    )

    def __init__(
        self, home: Home, engine_id: int, parent: Branch | None, overflow: Overflow | None = None, reused: int = 0
    ) -> None:
        self._home = home
        self._loop = home.loop
        self._id = engine_id
        self._history = self._loop.histories[engine_id]
        self._hold: object = None
        policy = overflow or (home.overflow if parent is None else parent._overflow_of_forks())
        self._record = BranchRecord(self, parent, policy, reused if parent is None else len(self._history))
        home.enter(self)

    @property
    def id(self) -> int:
        """Number of the branch within its Context; never reused."""
        return self._id

    @property
    def context(self) -> Context:
        """The Context that it lives in."""
        context: Context = self._home.context
        return context

    @property
    def parent(self) -> Branch | None:
        """The branch that it was forked from; None for a root, and once the parent is gone."""
        parent = self._record.parent
        return None if parent is None else parent()

    @property
    def overflow(self) -> Overflow:
        """What makes room when it does not fit any more; forks begin with their parent's. To be set by anybody, for
        what begins after that."""
        return self._record.overflow

    @overflow.setter
    def overflow(self, policy: Overflow) -> None:
        self._record.overflow = checked_overflow(policy)

    @property
    def _makes_room(self) -> bool:
        return not isinstance(self.overflow, Stop)

    def _overflow_of_forks(self) -> Overflow:
        return Stop() if self._history.asking else self.overflow  # a policy is not asked on behalf of itself

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._record.closed or not self._loop.is_open

    @property
    def reused(self) -> int:
        """How many of the tokens that it began with were in the cache already: all of them for a fork."""
        return self._record.reused

    @property
    def tokens(self) -> list[int]:
        """Every token of the history, including the last sampled one; as of the last verb that ended."""
        return self._history.log.tolist()

    @property
    def text(self) -> str:
        """The tokens as text, special tokens included; a character that the last ones only begin is none of it."""
        return self._home.spelling.whole(self.tokens)

    def __len__(self) -> int:
        return len(self._history)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branch) and other._record is self._record

    def __hash__(self) -> int:
        return hash(self._record)

    def __bool__(self) -> bool:
        return True  # an empty branch is still a branch

    def __repr__(self) -> str:
        return f"<Branch {self._id}: {len(self)} tokens{', closed' if self.closed else ''}>"

    @property
    def messages(self) -> list[Message]:
        """The conversation: messages that were given, and what was generated in an assistant's turn; as of the last
        verb that ended. Text and ids that the branch was extended with are no messages, outside of such a turn."""
        history = self._history
        return history.conversation.messages(history.log, self._home.reader)

    async def extend(self, prompt: Prompt, *, template: Mapping[str, Any] | None = None) -> Extended:
        """Adds text, token ids or chat messages to the history and prefills them.

        Messages go on from what is there, as the chat template spells the whole conversation: afterwards the tokens
        are those of the whole. What the model generated stays token for token, unless the template spells another
        message (it may leave out what the model thought in earlier turns): then the branch is rewritten from there
        on, and the result says so.
        Text is the caller's own, control tokens that it spells included; for what others wrote, give messages, or the
        ids of `ctx.tokenizer.encode(text, parse_special=False)`.

        All or nothing: on any error, and when cancelled, the branch is as it was.

        Args:
            prompt: what to add.
            template: variables for the chat template, such as `{"enable_thinking": False}`; only with messages. They
                hold for what comes later as well, until they are given anew.

        Raises:
            InvalidInput: nothing to add, or not text, ids or messages; or the chat template refuses them.
            ContextFull: fewer cells are free than tokens were given, and `overflow` makes no room.
            PositionsExhausted: more tokens than the model has positions.
        """
        encode = self._home.encoding.prompt
        return await extend_by(self, lambda: encode(prompt, after=self._history, template=template))

    def mark(self, name: str | None = None) -> Mark:
        """The present end of the history, to roll back to. Synchronous and free.

        One with a name is also among `marks`, and saved with the branch; a later one takes the name over.
        """
        self._check()
        mark = make_mark(self._id, self._history)
        if name is not None:
            self._history.marks[checked_name(name, "the name of a mark")] = mark
        return mark

    @property
    def marks(self) -> dict[str, Mark]:
        """The marks that were given a name, and that still hold."""
        return dict(self._history.marks)

    async def rollback(self, to: Mark | int) -> None:
        """Takes back everything after a mark, or after the first `to` tokens. Moves no bytes.

        What `forget` freed since comes back as well, and what a window let go: the next verb feeds it again. What made
        room (`overflow`) does not.

        Raises:
            InvalidRollback: a mark of another branch or of rewritten history, or a length beyond the present one.
        """
        await self._ready()
        length, epoch = place_of(to, self._id, self._history)
        await self._loop.call(lambda engine: engine.rollback(self._id, length, epoch))

    @overload
    async def fork(self) -> Branch: ...
    @overload
    async def fork(self, n: int) -> list[Branch]: ...

    async def fork(self, n: int | None = None) -> Branch | list[Branch]:
        """A child with the same history, or a list of `n`. Shares the cache; copies no keys or values.

        A branch that still generates can be forked: the child has the tokens made so far.

        Raises:
            TooManyBranches: more live branches than the cache was built for; then none is made.
        """
        self._check()
        await self._here()
        count = 1 if n is None else checked_count(n, "n", 1, MOST_FORKS)

        def undo(worker: Worker, made: list[int]) -> None:
            for child in made:
                worker.close(child)

        share = partial(self._loop.histories.share, self._id)
        made = await self._loop.call(lambda engine: engine.fork(self._id, count), undo, told=share)
        children = [Branch(self._home, child, self) for child in made]
        return children[0] if n is None else children

    async def select(self, choices: Sequence[str]) -> Choice:
        """The most likely of `choices` as a continuation, with the log-probability of each; the branch is unchanged.

        A choice is scored by the sum over its tokens, so a longer one competes with all of its tokens.

        Raises:
            InvalidInput: no choices, an empty one, or a branch without tokens.
            ContextFull: fewer cells are free than the choices have tokens.
            PositionsExhausted: a choice needs more positions than the model has left.
        """
        self._check_started("select")
        texts, encoded = await self._home.encoding.choices(choices)
        await self._ready("select")

        def finish(finished: Finished) -> list[float]:
            check_finished(finished)
            return list(finished.scores)

        def scored() -> Awaitable[list[float]]:
            return self._loop.run(Job(lambda engine: engine.select(self._id, encoded), finish))

        scores = await with_room(self, sum(map(len, encoded)), scored)
        return Choice(texts[int(np.argmax(scores))], int(np.argmax(scores)), scores)

    async def logits(self) -> NDArray[np.float32]:
        """The next-token logits, float32 [vocab_size]. Costs a forward only where they are not known yet.

        Raises:
            InvalidInput: a branch without tokens.
        """
        await self._ready("logits")

        def finish(finished: Finished) -> NDArray[np.float32]:
            check_finished(finished)
            assert finished.logits is not None
            return finished.logits

        def computed() -> Awaitable[NDArray[np.float32]]:
            return self._loop.run(Job(lambda engine: engine.logits(self._id), finish))

        return await with_room(self, 1, computed)

    async def adopt(self, other: Branch) -> None:
        """Takes over the history of another branch of the same Context, which stays as it is.

        Marks of this branch hold as far as the two histories agree.

        Raises:
            ForeignBranch: `other` lives in another Context.
        """
        self._check_free()
        if not isinstance(other, Branch):
            raise InvalidInput(f"other is {shown(other)}, but it must be a Branch")
        other._check_free()
        self._home.check_owns(other)
        while self._history.aside is not None or other._history.aside is not None:
            await other._ready()
            await self._ready()
        share = partial(self._loop.histories.share, other._id)
        await self._loop.call(lambda engine: engine.adopt(self._id, other._id), told=lambda _: share([self._id]))

    def close(self) -> Closing:
        """Frees the branch; what it runs is cancelled. Synchronous and idempotent.

        `await branch.close()` also waits until its cells are free.
        """
        self._home.leave(self)
        if not self._record.close():
            return Closing(self._loop, None)
        return Closing(self._loop, self._loop.close(self._id))

    async def __aenter__(self) -> Branch:
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        closing = self.close()
        if kind is not GeneratorExit:  # a coroutine that is torn down can await nothing
            with anyio.CancelScope(shield=True):
                await closing

    def _check(self) -> None:
        self._loop.check_open()
        if self._record.closed:
            raise BranchClosed(f"branch {self._id} is closed; use a live branch, or fork before closing")

    def _check_free(self) -> None:
        """For verbs that change the branch, or run something on it."""
        self._check()
        if self._history.hold not in (None, self._hold, acting_hold.get()):
            raise BranchBusy(f"branch {self._id} is in an agent's turn; wait for its end, or work on a fork")

    async def _ready(self, verb: str | None = None) -> None:
        """For verbs that need the cells: brings back those that were offloaded. Awaits nothing else."""
        self._check_free()
        await self._here()
        self._check_free()
        if verb is not None:
            self._check_started(verb)

    def _check_started(self, verb: str) -> None:
        self._check_free()
        if not len(self._history):
            raise InvalidInput(f"{verb} on branch {self._id}, which has no tokens; extend it first")
