"""Branch: one line of history over the shared cache: tokens, KV and sampler state together."""

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
from .._storage.offload import InFile, InMemory, OffloadedCells  # here: a verb may find no file to be opened any more
from .._storage.save import Progress, Saved
from .._types.checks import Prompt, checked_count, checked_name, checked_path, known_keywords
from .._types.errors import InvalidInput
from .._types.mark import Mark
from .._types.message import Message
from .._types.offload import checked_priority
from .._types.results import Choice, Generation
from .._types.show import preview
from .adapters import set_adapter
from .extend import Extended, extend_by, open_turn
from .files import adopted_files, closed_on_error, forked_views, give_views, marked, roll_back, view_of
from .generate import GenerationRequest, generate_with_retries
from .handle import BranchHandle, BranchRecord, close_branch
from .overflow import Overflow, checked_overflow, retry_with_room
from .store import save_branches
from .stream import DEFAULT_BUFFER, Keep, TokenStream

if TYPE_CHECKING:
    from .._engine.commands import Worker
    from .._engine.interface import FinishedJob
    from .._storage.load import Loaded
    from .._types.adapter import Adapter
    from .._types.sampling import Sampling
    from ..output.constraint import Constraint
    from ..output.grammar import GrammarSource
    from ..workspaces.view import WorkspaceView
    from .context import Context
    from .core import ContextCore

Out = TypeVar("Out", default=str)

MOST_FORKS = 2**31 - 1  # that the engine counts; it refuses all beyond its branches
MOST_STREAMS = 2**63 - 1


class GenerateKwargs(TypedDict, total=False):
    """Options of `generate` and `stream` other than `output`, for type checkers."""

    max_tokens: int
    stop: str | Sequence[str] | None
    sampling: Sampling | None
    speculative: Speculative | Inherit | None
    top_logprobs: int
    thinking: Thinking


class Branch:
    """One line of history. Made by `Context.branch` and `Branch.fork`.

    A branch does one thing at a time: a method that changes or runs something raises BranchBusy while another one, or
    an agent's turn, is running on the branch (`fork`, `mark` and `close` do not). Every method raises BranchClosed
    after `close`, and ContextClosed after the Context's block.

    A cancelled method is settled before the cancellation propagates: a cancelled `extend` leaves the branch as it was,
    a cancelled `generate` keeps the tokens generated so far.

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
        """The Context that the branch belongs to."""
        context: Context = self._handle.core.context
        return context

    @property
    def parent(self) -> Branch | None:
        """The branch that it was forked from; None for a root, and once the parent is gone."""
        parent = self._handle.record.parent
        return None if parent is None else parent()

    @property
    def overflow(self) -> Overflow:
        """The policy that makes room when the branch no longer fits; forks inherit it. Settable at any time, for
        operations that begin later."""
        return self._handle.record.overflow

    @overflow.setter
    def overflow(self, policy: Overflow) -> None:
        self._handle.record.overflow = checked_overflow(policy)

    @property
    def priority(self) -> float:
        """How long the branch keeps its cells where others need them, and how soon it gets them back, among those of
        the Context: the higher, the better; `math.inf` keeps them. 0 by default; forks inherit it. Settable at any
        time. Setting raises InvalidInput for what is no number."""
        return self._handle.record.priority

    @priority.setter
    def priority(self, value: float) -> None:
        self._handle.record.priority = checked_priority(value)

    @property
    def adapter(self) -> Adapter | None:
        """The LoRA adapter that the next token is computed with; None for none. Forks inherit it.

        Settable while nothing runs on the branch: from its present end on tokens have the other one, and those before
        keep their cells. So the next token is still drawn from logits of the old one, unless the branch is extended
        first. A rollback to before that point takes it back. Setting raises AdapterError for what is no adapter of
        this Context, and BranchBusy."""
        return self._handle.core.adapters.of(self._handle.state.adapter)

    @adapter.setter
    def adapter(self, adapter: Adapter | None) -> None:
        set_adapter(self._handle, adapter)

    @property
    def workspace(self) -> WorkspaceView | None:
        """Its files, where it, or the branch that it was forked from, was made with a `workspace`; else None."""
        return view_of(self)

    @property
    def closed(self) -> bool:
        """Whether the branch, or its Context, is closed."""
        return self._handle.record.closed or not self._handle.loop.is_open

    @property
    def reused(self) -> int:
        """Number of initial tokens that were in the cache already: all of them for a fork."""
        return self._handle.record.reused

    @property
    def tokens(self) -> list[int]:
        """All tokens of the history, including the last sampled one; as of the last completed method call."""
        return self._handle.state.tokens.tolist()

    @property
    def text(self) -> str:
        """The tokens as text, special tokens included; an incomplete character at the end is left out."""
        return self._handle.core.chat.detokenizer.whole(self.tokens)

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
        """The conversation: messages from prompts, and those generated in assistant turns; as of the last completed
        method call. Text and ids that extended the branch outside of such a turn are not messages."""
        state = self._handle.state
        return state.conversation.messages(state.tokens, self._handle.core.chat.reader)

    async def extend(self, prompt: Prompt, *, template: Mapping[str, Any] | None = None) -> Extended:
        """Appends text, token ids or chat messages to the history and prefills them.

        Messages continue the conversation as the chat template renders it whole: afterwards the tokens are those of the
        whole rendering. Generated messages stay token for token, unless the template renders them differently (it may
        leave out the reasoning of earlier turns): then the branch is rewritten from there on, and the result says so.
        Text is trusted: control tokens spelled in it are parsed. For untrusted text, pass messages, or the ids of
        `ctx.tokenizer.encode(text, parse_special=False)`.

        All or nothing: on any error, and when cancelled, the branch is as it was.

        Args:
            prompt: the text, token ids or messages to append.
            template: variables for the chat template, such as `{"enable_thinking": False}`; only with messages. They
                also apply to later messages, until set again.

        Raises:
            InvalidInput: an empty prompt, one that is not text, ids or messages, or messages that the template refuses.
            ContextFull: fewer cells are free than the prompt has tokens, and `overflow` makes no room.
            PositionsExhausted: more tokens than the model has positions.
        """
        encode = self._handle.core.chat.encoder.prompt
        return await extend_by(self, lambda: encode(prompt, after=self._handle.state, template=template))

    def mark(self, name: str | None = None) -> Mark:
        """The present end of the history, to roll back to. Synchronous and free; with a workspace, its files are looked
        at, which takes about a millisecond for each hundred.

        A named mark is also in `marks`, and saved with the branch; a later one of the same name replaces it.

        Raises:
            WorkspaceError: the files cannot be read.
        """
        self._handle.check_open()
        mark = marked(self._handle)
        if name is not None:
            self._handle.state.marks[checked_name(name, "the name of a mark")] = mark
        return mark

    @property
    def marks(self) -> dict[str, Mark]:
        """The named marks that are still valid."""
        return dict(self._handle.state.marks)

    async def rollback(self, to: Mark | int) -> None:
        """Removes everything after a mark, or after the first `to` tokens. Moves no bytes.

        Tokens freed by `forget` since, or by a window, return as well: the next method feeds them again. Tokens removed
        to make room (`overflow`) do not. Files of a workspace are those of the mark again; of a length, those of the
        last mark, fork or beginning of a turn at that length or before it.

        Raises:
            InvalidRollback: a mark of another branch or of rewritten history, or a length beyond the present one.
            WorkspaceError: the files cannot be written; the tokens are rolled back, and `workspace.path` tries again.
        """
        await roll_back(self._handle, to)

    @overload
    async def fork(self) -> Branch: ...
    @overload
    async def fork(self, n: int) -> list[Branch]: ...

    async def fork(self, n: int | None = None) -> Branch | list[Branch]:
        """A child with the same history, or a list of `n` children. Shares the cache; copies no keys or values.

        A branch can be forked while it generates: the child has the tokens generated so far. In a workspace each child
        has files of its own, which are copied when they are first used.

        Raises:
            TooManyBranches: more live branches than the cache supports; then no child is made.
            WorkspaceError: the files cannot be read; then no child is made.
        """
        self._handle.check_open()
        await self._handle.reload()
        count = 1 if n is None else min(checked_count(n, "n", 1), MOST_FORKS)

        def undo(worker: Worker, made: list[int]) -> None:
            for child in made:
                worker.close(child)

        share = partial(self._handle.core.states.copy_conversation, self.id)
        views = await forked_views(self._handle, count)
        with closed_on_error(views):
            made = await self._handle.call(lambda engine: engine.fork(self.id, count), undo, on_result=share)
        children = [new_branch(self._handle.core, child, self) for child in made]
        give_views((child._handle for child in children), views)
        return children[0] if n is None else children

    @overload
    async def generate(
        self, *, output: TypeForm[Out] = ..., output_retries: int = ..., **how: Unpack[GenerateKwargs]
    ) -> Generation[Out]: ...
    @overload
    async def generate(
        self, *, output: GrammarSource[Out] | Constraint, output_retries: int = ..., **how: Unpack[GenerateKwargs]
    ) -> Generation[Out]: ...

    @known_keywords
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
        """Samples tokens until an end condition. All of them enter the history.

        After messages the assistant speaks: if the last one is a system's or developer's, its turn is opened first, and
        if the last one is its own, it is continued.

        Args:
            max_tokens: maximum number of tokens, at least 1.
            stop: strings that end the generation; the text leaves them out, the history keeps them.
            sampling: sampling parameters; None is greedy.
            speculative: a strategy of `kv.spec` or your own, or None for none; by default the Context's. The tokens are
                the same, in fewer forwards.
            top_logprobs: number of most likely tokens to report at each position, at most 20.
            thinking: for a model that reasons, the maximum number of reasoning tokens in its message; they count
                towards `max_tokens`. At the limit the thought is closed, after a word that says so, and the answer
                follows. False, same as 0, closes it at once, or writes an empty one; True sets no limit; None changes
                nothing. Switches of the chat template are set before: `Context.branch(template=...)`. A typed `output`
                follows the thought; with None there is no thought before it.
            output: the constraint on the text. `str` is any text. A type is written as JSON (a choice of strings, such
                as `Literal["yes", "no"]` or an Enum, as the bare word): a pydantic model, a dataclass, a TypedDict,
                int, list[...], a union ... Else a kv.Regex, kv.JsonSchema or kv.Grammar, or your own kv.Constraint.
                `Generation.output` is the value. A truncated output (by `max_tokens`, a cancellation, a full cache, or
                a rollback into it) is continued by the next generation with the same `output`. finish_reason is "stop"
                if nothing may follow, "eos" if the model ends a complete output.
            output_retries: number of retries for a value that the type's validators reject. The branch is rolled back,
                and the tokens are sampled with another seed; a greedy request then samples at temperature 1.

        Raises:
            InvalidInput: an argument out of range, a branch without tokens, or an unsupported `output`.
            OutputInvalid: the last value was rejected as well; the branch is as it was.
            PositionsExhausted: the branch is at the model's last position.
            ModelError: a strategy cannot be opened on its first use; DraftMismatch if it was not made for this model.
            StepFailed: a forward, the strategy or the constraint failed; the branch keeps the tokens generated before.
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
        request = GenerationRequest.checked(handle.id, handle.core, options, output, waits_for=handle.waits_for)
        await request.prepare()
        await open_turn(self)
        await self._handle.ready("generate")
        return await generate_with_retries(self, request.after(self._handle.state), retries)

    @overload
    def stream(
        self, *, output: TypeForm[Out] = ..., buffer: int = ..., keep: Keep = ..., **how: Unpack[GenerateKwargs]
    ) -> TokenStream[Out]: ...
    @overload
    def stream(
        self,
        *,
        output: GrammarSource[Out] | Constraint,
        buffer: int = ...,
        keep: Keep = ...,
        **how: Unpack[GenerateKwargs],
    ) -> TokenStream[Out]: ...

    @known_keywords
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
        """Same as `generate`, token by token: `async with branch.stream() as tokens: async for token in tokens: ...`.

        Leaving the block stops the generation, and the branch keeps exactly the tokens that were read, or with
        `keep="made"` all that were generated. A reader that falls `buffer` tokens behind pauses its own branch only.
        A value that its type rejects is not retried, since it was read: `generation.output` raises.
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
            handle.id, handle.core, options, output, waits_for=handle.waits_for, buffer=limit
        )
        return TokenStream(self, request, limit, keep)

    async def draw_as(self, stream: int) -> None:
        """Sets the branch's random stream to number `stream`; its forks get streams derived from it. The same prompt,
        seed and stream then give the same tokens, however many branches there were before.

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
        texts, encoded = await self._handle.core.chat.encoder.choices(choices)
        await self._handle.ready("select")

        def finish(finished: FinishedJob) -> list[float]:
            check_finished(finished)
            return list(finished.scores)

        def scored() -> Awaitable[list[float]]:
            return self._handle.run(Job(lambda engine: engine.select(self.id, encoded), finish))

        scores = await retry_with_room(self, sum(map(len, encoded)), scored)
        return Choice(texts[int(np.argmax(scores))], int(np.argmax(scores)), scores)

    async def logits(self) -> NDArray[np.float32]:
        """The next-token logits, float32 [vocab_size]. Costs a forward only if they are not known yet.

        Raises:
            InvalidInput: a branch without tokens.
        """
        await self._handle.ready("logits")

        def finish(finished: FinishedJob) -> NDArray[np.float32]:
            check_finished(finished)
            assert finished.logits is not None
            return finished.logits

        def computed() -> Awaitable[NDArray[np.float32]]:
            return self._handle.run(Job(lambda engine: engine.logits(self.id), finish))

        return await retry_with_room(self, 1, computed)

    async def adopt(self, other: Branch) -> None:
        """Takes over the history of another branch of the same Context, which stays as it is.

        Marks of this branch stay valid up to where the two histories differ. In a workspace, files that `other` changed
        change here, too; those that changed here alone since the one was forked from the other stay as they are.

        Raises:
            ForeignBranch: `other` belongs to another Context.
            WorkspaceConflict: some of the same files changed on both, and not alike; nothing was changed.
            WorkspaceError: files cannot be read; nothing was changed. Or they cannot be written: `workspace.path` tries
                again.
        """
        self._handle.check_free()
        if not isinstance(other, Branch):
            raise InvalidInput(f"other is {preview(other)}, but it must be a Branch")
        other._handle.check_free()
        self._handle.core.check_owns(other)
        while self._handle.state.offloaded is not None or other._handle.state.offloaded is not None:
            await other._handle.ready()
            await self._handle.drop_offloaded()
        share = partial(self._handle.core.states.copy_conversation, other.id)
        async with adopted_files(self._handle, other._handle):
            await self._handle.call(
                lambda engine: engine.adopt(self.id, other.id), on_result=lambda _: share([self.id])
            )
        if self._handle.core.journal is not None:
            await self._handle.core.journal.changed(self)

    @property
    def loaded(self) -> Loaded | None:
        """The origin of the cells of a branch loaded from a file; None for any other."""
        return self._handle.record.loaded

    async def save(self, path: str | Path, *, shareable: bool = False, progress: Progress | None = None) -> Saved:
        """Saves the branch to a file, for `Context.load`: tokens, keys and values, messages, named marks, and the state
        of its random numbers. Saves the present state, also while the branch runs something; all branches continue
        meanwhile.

        A file at `path` is replaced once the new one is complete and on the disk; on failure it stays as it is.

        Args:
            path: path of the file; its folder must exist.
            shareable: lay its cells out in pages, for `Context.load(path, shared=True)`. Adds up to a page for each
                head and array.
            progress: called with the bytes done and the bytes in total.

        Raises:
            SnapshotError: the file cannot be written.
            InvalidInput: `shareable` on a backend other than "cpu".
        """
        self._handle.check_open()
        return await save_branches(self._handle.core, path, {"branch": self}, shareable, progress)

    async def offload(self, folder: str | Path | None = None) -> int:
        """Moves the cells that no other branch shares out of the cache, and frees them. The next method that needs them
        reloads them, bit for bit; `mark` and `close` do not.

        Args:
            folder: store them in an unnamed temporary file in this folder; None stores them in memory.

        Returns:
            Number of cells freed.

        Raises:
            BranchBusy: the branch runs something.
            SnapshotError: the file cannot be written; the branch stays in the cache.
        """
        self._handle.check_free()
        place = None if folder is None else checked_path(folder, "folder", "the path of a folder")
        if self._handle.state.offloaded is not None:
            return 0
        store = InMemory if place is None else partial(InFile, place)
        return await OffloadedCells(self._handle.loop, [self._handle.state], store).offload()

    async def forget(self, p0: int, p1: int) -> int:
        """Frees the cells of the tokens at [p0, p1). The tokens stay, and so do all positions; keys and values computed
        in between still reflect them, but no token from the present end on attends to them.

        This is part of the history: forks inherit it, it is saved, and a rollback to fewer tokens than the branch had
        then undoes it (the next method that needs the tokens feeds them again, see `ctx.stats.refed`). A rollback to
        exactly as many tokens does not.

        Returns:
            Number of cells freed: cells that other branches share are not.

        Raises:
            InvalidInput: positions that do not exist; or the last one, from which the next token is computed.
            BranchBusy: the branch runs something.
        """
        await self._handle.ready()
        length = len(self._handle.state)
        last = checked_count(p1, "p1", 0, max(length - 1, 0))
        first = checked_count(p0, "p0", 0, last)
        return await self._handle.call(lambda engine: engine.forget(self.id, first, last))

    async def publish(self, name: str) -> None:
        """Stores the branch's present state on the server under a name, for `Context.attach` in any process: tokens,
        the server's cells, messages, tools, named marks, the last output, and the state of its random numbers.

        Later changes of this branch are not stored until it is published again, which replaces the stored one. The
        branch that published it, and one that was attached to it, may do so; their forks may not, nor anyone once
        another client has changed it there. The request is retried if its answer is lost, and executed once.

        The server keeps it like the branches of `/v1/branches`, where it has the same name: until it is deleted, has
        been idle for too long (`agentkv serve --branch-seconds`), or the server ends.

        Args:
            name: 1 to 64 letters, digits, "_", "." and "-"; the first one a letter or a digit.

        Raises:
            BranchExists: another branch has that name, or another client has changed this one there.
            BranchBusy: the branch runs something.
            InvalidInput: an invalid name, or no server of `agentkv serve`.
            RemoteError: no server answers.
        """
        await self._handle.ready()
        self._handle.core.check_publishes()
        from .._documents.published import checked_publication
        from .publish import publish

        await publish(self, checked_publication(name))

    @property
    def offloaded(self) -> bool:
        """Whether cells of the branch are outside of the cache."""
        return self._handle.state.offloaded is not None

    def close(self) -> Closing:
        """Frees the branch and cancels its running method. Synchronous and idempotent.

        `await branch.close()` also waits until its cells are free.
        """
        return close_branch(self._handle.record)

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


def new_branch(
    core: ContextCore, id: int, parent: Branch | None, overflow: Overflow | None = None, reused: int = 0
) -> Branch:
    """Wraps a new branch of the engine. A fork begins with all of its parent's tokens and with its policy."""
    of_parent = None if parent is None else parent._handle
    state = core.states[id]
    policy = overflow or (core.overflow if of_parent is None else of_parent.overflow_of_forks)
    record = BranchRecord(core, state, policy, reused if parent is None else len(state))
    branch = Branch(BranchHandle(record))
    record.branch = weakref.ref(branch)
    record.parent = None if of_parent is None else of_parent.record.branch
    record.priority = 0.0 if of_parent is None else of_parent.record.priority
    core.registry.add(branch)
    return branch
