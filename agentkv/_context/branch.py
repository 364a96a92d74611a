"""One line of history over the shared cache: tokens, KV and sampler state together."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import anyio
import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeForm, TypeVar

from .._engine.commands import Job, check_finished
from .._engine.loop import Closing
from .._model.drafters import INHERIT, Inherit, Speculative
from .._model.generate_options import MOST_TOKENS, GenerateOptions, Thinking
from .._storage.offload import Aside, InFile, InMemory  # here: a verb may find no file to be opened any more
from .._storage.save import Progress, Saved
from .._types.checks import Prompt, checked_count, checked_name, checked_path
from .._types.errors import InvalidInput
from .._types.mark import Mark
from .._types.message import Message
from .._types.results import Choice, Generation
from .._types.show import shown
from .extend import Extended, extend_by, open_turn
from .generate import GenerationRequest, generated
from .handle import BranchHandle, BranchRecord
from .overflow import Overflow, checked_overflow, with_room
from .store import save_branches
from .stream import DEFAULT_BUFFER, Keep, TokenStream

if TYPE_CHECKING:
    from .._engine.commands import Worker
    from .._engine.interface import Finished
    from .._storage.load import Loaded
    from .._types.sampling import Sampling
    from ..output.constraint import Constraint
    from ..output.grammar import GrammarSource
    from .context import Context
    from .core import Home

Out = TypeVar("Out", default=str)

MOST_FORKS = 2**31 - 1
MOST_STREAMS = 2**63 - 1


class How(TypedDict, total=False):
    """What both verbs take beside `output`, for type checkers."""

    max_tokens: int
    stop: str | Sequence[str] | None
    sampling: Sampling | None
    speculative: Speculative | Inherit | None
    top_logprobs: int
    thinking: Thinking


class Branch:
    """One line of history. Made by `Context.branch` and `Branch.fork`.

    A branch does one thing at a time: a verb on a branch that still runs something, an agent's turn included, raises
    BranchBusy (`fork`, `mark` and `close` do not mind). Every verb raises BranchClosed after `close` and ContextClosed
    after the Context was left.
    A cancelled verb is settled before the cancellation goes on: a cancelled `extend` leaves the branch as it was, a
    cancelled `generate` keeps the tokens it made.

    A branch that is no longer referenced is closed.
    """

    __slots__ = ("__weakref__", "_handle")

    def __init__(self, handle: BranchHandle) -> None:
        """Private: see `new_branch`."""
        self._handle = handle

    @property
    def id(self) -> int:
        """Number of the branch within its Context; never reused."""
        return self._handle.id

    @property
    def context(self) -> Context:
        """The Context that it lives in."""
        context: Context = self._handle.core.context
        return context

    @property
    def parent(self) -> Branch | None:
        """The branch that it was forked from; None for a root, and once the parent is gone."""
        parent = self._handle.record.parent
        return None if parent is None else parent()

    @property
    def overflow(self) -> Overflow:
        """What makes room when it does not fit any more; forks begin with their parent's. To be set by anybody, for
        what begins after that."""
        return self._handle.record.overflow

    @overflow.setter
    def overflow(self, policy: Overflow) -> None:
        self._handle.record.overflow = checked_overflow(policy)

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._handle.record.closed or not self._handle.loop.is_open

    @property
    def reused(self) -> int:
        """How many of the tokens that it began with were in the cache already: all of them for a fork."""
        return self._handle.record.reused

    @property
    def tokens(self) -> list[int]:
        """Every token of the history, including the last sampled one; as of the last verb that ended."""
        return self._handle.state.log.tolist()

    @property
    def text(self) -> str:
        """The tokens as text, special tokens included; a character that the last ones only begin is none of it."""
        return self._handle.core.chat.spelling.whole(self.tokens)

    def __len__(self) -> int:
        return len(self._handle.state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branch) and other._handle.record is self._handle.record

    def __hash__(self) -> int:
        return hash(self._handle.record)

    def __bool__(self) -> bool:
        return True  # an empty branch is still a branch

    def __repr__(self) -> str:
        return f"<Branch {self.id}: {len(self)} tokens{', closed' if self.closed else ''}>"

    @property
    def messages(self) -> list[Message]:
        """The conversation: messages that were given, and what was generated in an assistant's turn; as of the last
        verb that ended. Text and ids that the branch was extended with are no messages, outside of such a turn."""
        history = self._handle.state
        return history.conversation.messages(history.log, self._handle.core.chat.reader)

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
        encode = self._handle.core.chat.encoding.prompt
        return await extend_by(self, lambda: encode(prompt, after=self._handle.state, template=template))

    def mark(self, name: str | None = None) -> Mark:
        """The present end of the history, to roll back to. Synchronous and free.

        One with a name is also among `marks`, and saved with the branch; a later one takes the name over.
        """
        self._handle.check_open()
        mark = self._handle.state.mark()
        if name is not None:
            self._handle.state.marks[checked_name(name, "the name of a mark")] = mark
        return mark

    @property
    def marks(self) -> dict[str, Mark]:
        """The marks that were given a name, and that still hold."""
        return dict(self._handle.state.marks)

    async def rollback(self, to: Mark | int) -> None:
        """Takes back everything after a mark, or after the first `to` tokens. Moves no bytes.

        What `forget` freed since comes back as well, and what a window let go: the next verb feeds it again. What made
        room (`overflow`) does not.

        Raises:
            InvalidRollback: a mark of another branch or of rewritten history, or a length beyond the present one.
        """
        await self._handle.ready()
        length, epoch = self._handle.state.resolve(to)
        await self._handle.call(lambda engine: engine.rollback(self.id, length, epoch))

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
        self._handle.check_open()
        await self._handle.reload()
        count = 1 if n is None else checked_count(n, "n", 1, MOST_FORKS)

        def undo(worker: Worker, made: list[int]) -> None:
            for child in made:
                worker.close(child)

        share = partial(self._handle.core.states.share, self.id)
        made = await self._handle.call(lambda engine: engine.fork(self.id, count), undo, told=share)
        children = [new_branch(self._handle.core, child, self) for child in made]
        return children[0] if n is None else children

    @overload
    async def generate(
        self, *, output: TypeForm[Out] = ..., output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...
    @overload
    async def generate(
        self, *, output: GrammarSource[Out] | Constraint, output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...

    async def generate(
        self,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        sampling: Sampling | None = None,
        speculative: Speculative | Inherit | None = INHERIT,
        top_logprobs: int = 0,
        thinking: Thinking = None,
        output: Any = str,
        output_retries: int = 1,
    ) -> Generation[Any]:
        """Samples tokens until something ends it. They all enter the history.

        Behind messages the assistant speaks: where the last one is a system's or developer's, its turn is opened first,
        and where the last one is its own, it goes on with that.

        Args:
            max_tokens: at most this many tokens, at least 1.
            stop: strings that end the generation; the text leaves them out, the history keeps them.
            sampling: how tokens are drawn; None is greedy.
            speculative: a strategy of `kv.spec` or your own, or None for none; left out, as the Context does. The
                tokens are the same, in fewer forwards.
            top_logprobs: also report so many of the most likely tokens in the place of each token, at most 20.
            thinking: of a model that reasons, how many tokens of its message may be reasoning; they count for
                `max_tokens` as all do. At so many the thought is closed, after a word that says so, and the answer
                follows. False, as 0, closes it at once, or writes an empty one; True sets no bound; None leaves all as
                it is. Switches of the chat template are set before: `Context.branch(template=...)`. A typed `output`
                is what comes behind the thought; with None it comes at once.
            output: what may be said. `str` is any text. A type is written as JSON (a choice of strings, such as
                `Literal["yes", "no"]` or an Enum, as the bare word): a pydantic model, a dataclass, a TypedDict, int,
                list[...], a union ... Else a kv.Regex, kv.JsonSchema or kv.Grammar, or a kv.Constraint of your own.
                `Generation.output` is the value. An output that was cut short (by `max_tokens`, a cancellation, a full
                cache, or a rollback into it) goes on when the same is asked for again. finish_reason is "stop" where
                nothing may follow, "eos" where the model ends what may end.
            output_retries: how often a value that the type's validators refuse is asked for again. The branch goes
                back to where it was, and the tokens are drawn anew with another seed, by the model's own distribution
                where it was greedy.

        Raises:
            InvalidInput: an argument out of range, a branch without tokens, or an `output` that no grammar holds.
            OutputInvalid: the last value was refused as well; the branch is as it was.
            PositionsExhausted: the branch is at the model's last position.
            ModelError: a strategy that this is the first use of cannot be opened; DraftMismatch where it was not made
                for this model.
            StepFailed: a forward failed, or the strategy or the constraint did; the branch keeps the tokens that were
                made before it.
        """
        self._handle.check_started("generate")
        retries = checked_count(output_retries, "output_retries", 0)
        options = GenerateOptions.checked(
            max_tokens=max_tokens,
            stop=stop,
            sampling=sampling,
            speculative=speculative,
            top_logprobs=top_logprobs,
            thinking=thinking,
        )
        handle = self._handle
        request = GenerationRequest.checked(handle.id, handle.core, options, output, wait_for_room=handle.makes_room)
        await request.prepare()
        await open_turn(self)
        await self._handle.ready("generate")
        return await generated(self, request.after(self._handle.state), retries)

    @overload
    def stream(
        self, *, output: TypeForm[Out] = ..., buffer: int = ..., keep: Keep = ..., **how: Unpack[How]
    ) -> TokenStream[Out]: ...
    @overload
    def stream(
        self, *, output: GrammarSource[Out] | Constraint, buffer: int = ..., keep: Keep = ..., **how: Unpack[How]
    ) -> TokenStream[Out]: ...

    def stream(
        self,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        sampling: Sampling | None = None,
        speculative: Speculative | Inherit | None = INHERIT,
        top_logprobs: int = 0,
        thinking: Thinking = None,
        output: Any = str,
        buffer: int = DEFAULT_BUFFER,
        keep: Keep = "read",
    ) -> TokenStream[Any]:
        """As `generate`, token by token: `async with branch.stream() as tokens: async for token in tokens: ...`.

        Leaving the block stops the generation, and the branch keeps exactly the tokens that were read, or with
        `keep="made"` all that were made. A reader that falls `buffer` tokens behind pauses its own branch only.
        A value that its type refuses is not asked for again, since it was read: `generation.output` raises.
        """
        self._handle.check_started("stream")
        limit = checked_count(buffer, "buffer", 1, MOST_TOKENS)
        options = GenerateOptions.checked(
            max_tokens=max_tokens,
            stop=stop,
            sampling=sampling,
            speculative=speculative,
            top_logprobs=top_logprobs,
            thinking=thinking,
        )
        handle = self._handle
        request = GenerationRequest.checked(
            handle.id, handle.core, options, output, wait_for_room=handle.makes_room, buffer=limit
        )
        return TokenStream(self, request, limit, keep)

    async def draw_as(self, stream: int) -> None:
        """Takes its random numbers from the stream of this number from now on, and its forks theirs from those derived
        from it: the same prompt, seed and stream then give the same tokens, however many branches there were before.

        Raises:
            InvalidInput: `stream` is not in 0 <= stream < 2**63.
        """
        number = checked_count(stream, "stream", 0, MOST_STREAMS)
        await self._handle.ready()
        await self._handle.call(lambda engine: engine.set_stream(self.id, number, 0))

    async def select(self, choices: Sequence[str]) -> Choice:
        """The most likely of `choices` as a continuation, with the log-probability of each; the branch is unchanged.

        A choice is scored by the sum over its tokens, so a longer one competes with all of its tokens.

        Raises:
            InvalidInput: no choices, an empty one, or a branch without tokens.
            ContextFull: fewer cells are free than the choices have tokens.
            PositionsExhausted: a choice needs more positions than the model has left.
        """
        self._handle.check_started("select")
        texts, encoded = await self._handle.core.chat.encoding.choices(choices)
        await self._handle.ready("select")

        def finish(finished: Finished) -> list[float]:
            check_finished(finished)
            return list(finished.scores)

        def scored() -> Awaitable[list[float]]:
            return self._handle.run(Job(lambda engine: engine.select(self.id, encoded), finish))

        scores = await with_room(self, sum(map(len, encoded)), scored)
        return Choice(texts[int(np.argmax(scores))], int(np.argmax(scores)), scores)

    async def logits(self) -> NDArray[np.float32]:
        """The next-token logits, float32 [vocab_size]. Costs a forward only where they are not known yet.

        Raises:
            InvalidInput: a branch without tokens.
        """
        await self._handle.ready("logits")

        def finish(finished: Finished) -> NDArray[np.float32]:
            check_finished(finished)
            assert finished.logits is not None
            return finished.logits

        def computed() -> Awaitable[NDArray[np.float32]]:
            return self._handle.run(Job(lambda engine: engine.logits(self.id), finish))

        return await with_room(self, 1, computed)

    async def adopt(self, other: Branch) -> None:
        """Takes over the history of another branch of the same Context, which stays as it is.

        Marks of this branch hold as far as the two histories agree.

        Raises:
            ForeignBranch: `other` lives in another Context.
        """
        self._handle.check_free()
        if not isinstance(other, Branch):
            raise InvalidInput(f"other is {shown(other)}, but it must be a Branch")
        other._handle.check_free()
        self._handle.core.check_owns(other)
        while self._handle.state.aside is not None or other._handle.state.aside is not None:
            await other._handle.ready()
            await self._handle.ready()
        share = partial(self._handle.core.states.share, other.id)
        await self._handle.call(lambda engine: engine.adopt(self.id, other.id), told=lambda _: share([self.id]))

    @property
    def loaded(self) -> Loaded | None:
        """Where a branch that was loaded from a file has its cells from; None for any other."""
        return self._handle.record.loaded

    async def save(self, path: str | Path, *, shareable: bool = False, progress: Progress | None = None) -> Saved:
        """Saves the branch to a file, for `Context.load`: tokens, keys and values, messages, named marks, and what its
        random numbers depend on. Takes it as it is now, also while it runs something; it and others go on meanwhile.

        What was at `path` is replaced once the file is whole and on the disk, or else stays as it is.

        Args:
            path: the file; its folder must be there.
            shareable: lay its cells out in pages, for `Context.load(path, shared=True)`. Up to a page is added for each
                head and array.
            progress: called with the bytes that are done and the bytes in all.

        Raises:
            SnapshotError: the file cannot be written.
            InvalidInput: `shareable` on another backend than the CPU's.
        """
        self._handle.check_open()
        return await save_branches(self._handle.core, path, {"branch": self}, shareable, progress)

    async def offload(self, folder: str | Path | None = None) -> int:
        """Moves the cells that no other branch shares out of the cache, and frees them. The next verb brings them back,
        with the same bits; `mark` and `close` do not need them.

        Args:
            folder: keep them in a file without a name in this folder; None keeps them in memory.

        Returns:
            How many cells were freed.

        Raises:
            BranchBusy: the branch runs something.
            SnapshotError: the file cannot be written; the branch stays in the cache.
        """
        self._handle.check_free()
        place = None if folder is None else checked_path(folder, "folder", "a folder")
        if self._handle.state.aside is not None:
            return 0
        store = InMemory if place is None else partial(InFile, place)
        return await Aside(self._handle.loop, self.id, self._handle.state, store).offload()

    async def forget(self, p0: int, p1: int) -> int:
        """Frees the cells of the tokens at [p0, p1). The tokens stay, and so do the positions of all others; what came
        between still has in it what it saw, but from the last token on nothing sees them any more.

        This is part of the history: forks have it, it is saved, and a rollback to fewer tokens than there were takes it
        back (then the tokens are fed again when the next verb needs them, see `ctx.stats.refed`). One to as
        many tokens leaves it.

        Returns:
            How many cells are free for it: none for those that other branches share.

        Raises:
            InvalidInput: positions that are not there; or the last one, from which comes what follows.
            BranchBusy: the branch runs something.
        """
        await self._handle.ready()
        length = len(self._handle.state)
        last = checked_count(p1, "p1", 0, max(length - 1, 0))
        first = checked_count(p0, "p0", 0, last)
        return await self._handle.call(lambda engine: engine.forget(self.id, first, last))

    async def publish(self, name: str) -> None:
        """Has the server keep the branch, as it is now, under a name, for `Context.attach` in any process: tokens, the
        server's cells, messages, tools, named marks, the last output, and what its random numbers depend on.

        What this branch is extended by later is not there until it is published again: then it takes the place of what
        was. That is so for the branch that published it, and for one that was attached; not for their forks, nor where
        somebody else changed it there since. Sent again where its answer is lost, and done once.

        The server keeps it as it keeps the branches of `/v1/branches`, where it has the same name: until somebody
        deletes it, it was idle for long (`agentkv serve --branch-seconds`), or the server ends.

        Args:
            name: 1 to 64 letters, digits, "_", "." and "-"; the first one a letter or a digit.

        Raises:
            BranchExists: another branch has that name, or somebody changed this one there.
            BranchBusy: the branch runs something.
            InvalidInput: no name, or no server of `agentkv serve`.
            RemoteError: no server answers.
        """
        await self._handle.ready()
        self._handle.core.check_publishes()
        from .._documents.published import checked_publication
        from .publish import publish

        await publish(self, checked_publication(name))

    @property
    def offloaded(self) -> bool:
        """Are cells of the branch outside of the cache?"""
        return self._handle.state.aside is not None

    def close(self) -> Closing:
        """Frees the branch; what it runs is cancelled. Synchronous and idempotent.

        `await branch.close()` also waits until its cells are free.
        """
        self._handle.core.registry.remove(self)
        if not self._handle.record.close():
            return Closing(self._handle.loop, None)
        return Closing(self._handle.loop, self._handle.loop.close(self.id))

    async def __aenter__(self) -> Branch:
        self._handle.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        closing = self.close()
        if kind is not GeneratorExit:  # a coroutine that is torn down can await nothing
            with anyio.CancelScope(shield=True):
                await closing


def new_branch(core: Home, id: int, parent: Branch | None, overflow: Overflow | None = None, reused: int = 0) -> Branch:
    """The Branch of one that the engine has just made. A fork begins with all of its parent's tokens and policy."""
    of_parent = None if parent is None else parent._handle
    state = core.states[id]
    policy = overflow or (core.overflow if of_parent is None else of_parent.overflow_of_forks)
    record = BranchRecord(core, state, policy, reused if parent is None else len(state))
    branch = Branch(BranchHandle(record))
    record.branch = weakref.ref(branch)
    record.parent = None if of_parent is None else of_parent.record.branch
    core.registry.add(branch)
    return branch
