"""Player of traces: runs the records of each branch in order, and branches concurrently."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import xxhash

from .._aio.tasks import FirstErrorGroup
from .._context.branch import Branch, new_branch
from .._context.handle import core_of, handle_of
from .._context.overflow import run_waiting
from .._engine.commands import Job
from .._engine.jobs import GenerationJob
from .._types.errors import AgentKVError
from .._types.show import safe_str
from .._types.tokens import common_prefix
from .conversations import conversation_of
from .interruptions import Interruption, Logs, interruptions_of, nothing
from .records import AnyRecord, Branched, Conversed, GenerateParams, JobBegan, JobEnded, Logged, Verb
from .replayed import Difference, Replayed
from .story import Story

if TYPE_CHECKING:
    from .._context.context import Context
    from .._engine.interface import FinishedJob, StepEngine

_CUT = ("cancelled", "context_full")  # finish reasons that do not come from the model
AHEAD = 64  # records that run concurrently
Progress = Callable[[int, int], None]


class Player:
    """Plays the records of a story: those of one branch in order, while branches wait only for their sources.

    Attributes:
        branches: live branches, by their numbers in the trace.
        logs: their recorded tokens so far.
    """

    def __init__(self, ctx: Context, story: Story, result: Replayed, changes: Any) -> None:
        self.ctx = ctx
        self.story = story
        self.result = result
        self.changes = changes
        self.branches: dict[int, Branch] = {}
        self.logs = Logs()
        self._interruptions = interruptions_of(story.records)
        self._last: dict[int, anyio.Event] = {}
        self._under_way = 0
        self._fewer = anyio.Event()
        self._group: FirstErrorGroup

    async def play(self, progress: Progress | None = None) -> None:
        """Plays all records; `progress` gets the number played and the total."""
        async with FirstErrorGroup() as self._group:
            for index, record in enumerate(self.story.records):
                if not self.changes.takes(self, index, record):
                    self._play(index, record)
                if progress is not None:
                    progress(index + 1, len(self.story.records))
                while self._under_way >= AHEAD:
                    await self._fewer.wait()
        await self.changes.end(self)

    def later(
        self,
        work: Callable[[], Awaitable[None]],
        *branches: int,
        failed: Callable[[AgentKVError], None] | None = None,
    ) -> None:
        """Schedules work after all earlier work on these branches.

        An AgentKVError goes to `failed`, by default into `result.left_out`.
        """
        before = [self._last[branch] for branch in branches if branch in self._last]
        done = anyio.Event()
        for branch in branches:
            self._last[branch] = done

        async def do() -> None:
            for event in before:
                await event.wait()
            try:
                await work()
            except AgentKVError as error:
                (failed or self._leave_out)(error)
            done.set()
            self._under_way -= 1
            self._fewer.set()
            self._fewer = anyio.Event()

        self._under_way += 1
        self._group.start_soon(do)

    def _leave_out(self, error: AgentKVError) -> None:
        self.result.left_out.append(f"{type(error).__name__}: {safe_str(error)}")

    def follow(self, record: AnyRecord) -> None:
        """Applies a record to `logs`."""
        self.logs.follow(record)

    def _play(self, index: int, record: AnyRecord) -> None:
        self.follow(record)
        if index in self._interruptions.inside:
            return  # replayed by its generation
        if isinstance(record, Branched):
            self.later(lambda: self._branch(record), record.source, *record.branches)
        elif isinstance(record, Logged):
            tokens = array("i", self.logs[record.branch])
            self.later(lambda: self.sync(record.branch, tokens), record.branch)
        elif isinstance(record, Conversed):
            self.later(lambda: self._converse(record), record.branch)
        elif isinstance(record, Verb):
            others = record.numbers if record.name == "adopt" else []
            put = self._interruptions.tokens.get(index, nothing())
            self.later(lambda: self._verb(record, put), record.branch, *others)
        elif isinstance(record, JobBegan) and (ended := self.story.ends.get(record.job)) is not None:
            inside = deque(self._interruptions.of_job.get(record.job, ()))
            made = [b for each in inside if isinstance(each.record, Branched) for b in each.record.branches]
            self.later(lambda: self._job(record, ended, inside), record.branch, *made)

    async def _branch(self, record: Branched) -> None:
        loop = core_of(self.ctx).loop
        made: list[Branch]
        if record.how == "fork" and record.source in self.branches:
            made = await self.branches[record.source].fork(len(record.branches))
        elif record.how == "copy" and record.source in self.branches:
            source = self.branches[record.source]
            copied = await loop.call(lambda engine: engine.copy(source.id))
            made = [new_branch(core_of(self.ctx), copied, None)]
        else:
            made = [await self._new(branch) for branch in record.branches]
            if record.how == "restore":
                self.result.left_out.append(f"branch {record.branches[0]} came from a file: its cells were made anew")
        for number, branch, stream in zip(record.branches, made, record.streams, strict=True):
            self.branches[number] = branch
            if record.how != "copy":
                await self._set_stream(branch, stream, 0)

    async def _new(self, number: int) -> Branch:
        tokens = array("i")
        tokens.frombytes(self.story.prompts.get(number, b""))
        forgotten = self.story.forgotten.get(number, [])
        branch = await self.ctx.branch(tokens.tolist() if tokens and not forgotten else None)
        for first, last, at, for_room in sorted(forgotten, key=lambda each: each[2]):
            await self._extend_to(branch, tokens[:at])
            await self._forget(branch, first, last, for_room)
        if forgotten:
            await self._extend_to(branch, tokens)
        return branch

    async def _extend_to(self, branch: Branch, tokens: array[int]) -> None:
        if len(branch) < len(tokens):
            await branch.extend(tokens[len(branch) :].tolist())

    async def _forget(self, branch: Branch, first: int, last: int, for_room: bool) -> None:
        await core_of(self.ctx).loop.call(lambda engine: engine.forget(branch.id, first, last, for_room))

    async def _set_stream(self, branch: Branch, stream: int, forks: int) -> None:
        await core_of(self.ctx).loop.call(lambda engine: engine.set_stream(branch.id, stream, forks))

    async def sync(self, number: int, tokens: array[int]) -> None:
        """Gives the branch these tokens by a rollback and an extend; makes the branch where it is missing."""
        branch = self.branches.get(number)
        if branch is None:
            branch = self.branches[number] = await self.ctx.branch()
        log = handle_of(branch).state.tokens
        if log == tokens:
            return
        kept = common_prefix(log, tokens)
        if kept < len(log):
            await branch.rollback(kept)
        if kept < len(tokens):
            await branch.extend(tokens[kept:].tolist())

    async def _converse(self, record: Conversed) -> None:
        branch = self.branches.get(record.branch)
        if branch is not None:
            handle_of(branch).state.set_conversation(conversation_of(self.story.values, record.state))

    async def _verb(self, record: Verb, put: array[int]) -> None:
        branch = self.branches.get(record.branch)
        if branch is None:
            return
        numbers = record.numbers
        if record.name == "rollback" and numbers[0] <= len(branch):
            length, keep = numbers
            await core_of(self.ctx).loop.call(lambda engine: engine.rollback(branch.id, length, None, bool(keep)))
        elif record.name == "adopt" and numbers[0] in self.branches:
            await branch.adopt(self.branches[numbers[0]])
        elif record.name == "forget":
            first, last, for_room = numbers
            await self._forget(branch, first, last, bool(for_room))
        elif record.name == "replace":
            first, last, _ = numbers
            await core_of(self.ctx).loop.call(lambda engine: engine.replace(branch.id, first, last, put))
        elif record.name == "set_stream":
            await self._set_stream(branch, numbers[0], numbers[1])
        elif record.name == "close":
            del self.branches[record.branch]
            await branch.close()

    async def _job(self, began: JobBegan, ended: JobEnded, inside: deque[Interruption]) -> None:
        branch = self.branches.get(began.branch)
        if branch is not None and not ended.error:
            await self._run_again(branch, began, ended, inside)
        while inside:  # of a job that was not replayed, or interruptions at its end
            await self._interrupt(inside.popleft())

    async def _interrupt(self, what: Interruption) -> None:
        if isinstance(what.record, Branched):
            await self._branch(what.record)
        else:
            await self._verb(what.record, what.tokens)

    async def _run_again(self, branch: Branch, began: JobBegan, ended: JobEnded, inside: deque[Interruption]) -> None:
        if began.kind == "generate" and began.how is not None and (ended.tokens or ended.reason not in _CUT):
            await self._generate(branch, began, began.how, ended, inside)
        elif began.kind == "logits" and ended.digests:
            finished = await self.run(lambda engine: engine.logits(branch.id))
            assert finished.logits is not None
            now = xxhash.xxh3_64_digest(finished.logits.tobytes())
            self._compare_digests(began, ended.digests, now)
        elif began.kind == "select" and ended.scores:
            choices = [np.frombuffer(choice, np.int32).tolist() for choice in began.choices]
            finished = await self.run(lambda engine: engine.select(branch.id, choices))
            if self.result.compares == "digests" and list(finished.scores) != ended.scores:
                self.differs(began, -1, "scores", str(ended.scores), str(list(finished.scores)))

    async def _generate(
        self, branch: Branch, began: JobBegan, how: GenerateParams, ended: JobEnded, inside: deque[Interruption]
    ) -> None:
        recorded = array("i")
        recorded.frombytes(ended.tokens)
        if how.grammar is None:
            self.result.left_out.append(
                f"a generation of {len(recorded)} tokens on branch {began.branch}: its constraint is written in Python"
            )
            return
        cut = ended.reason in _CUT
        finished = await self.generated(branch, how, len(recorded) if cut else how.max_tokens, inside)
        result = self.result
        if finished.output_began != ended.output_began:
            result.left_out.append(
                f"a generation on branch {began.branch} went on with an output from before the trace"
            )
            return
        result.generations += 1
        result.tokens += len(recorded)
        tokens = array("i", finished.tokens)
        for i, (one, other) in enumerate(zip(recorded, tokens, strict=False)):
            if one != other:
                return self.differs(began, i, "token", self.spelled(one), self.spelled(other))
        if len(recorded) != len(tokens) or (not cut and ended.reason != finished.finish_reason):
            was, now = f"{ended.reason} after {len(recorded)}", f"{finished.finish_reason} after {len(tokens)}"
            return self.differs(began, -1, "end", was, now)
        self._compare_digests(began, ended.digests, finished.digests)

    async def generated(
        self, branch: Branch, how: GenerateParams, max_tokens: int, inside: deque[Interruption] | None = None
    ) -> FinishedJob:
        """Runs a generation like a recorded one, with the interruptions `inside`, which are consumed."""
        from agentkv_runtime.engine import GenerateOptions, Sampling

        inside = deque() if inside is None else inside
        grammars = core_of(self.ctx).compiler
        options = GenerateOptions(
            max_tokens=max_tokens,
            stop=how.stop,
            sampling=Sampling(**{name: value for name, value in how.sampling.items() if value is not None}),
            seed=how.seed,
            constraint=grammars.restored(how.grammar) if how.grammar else None,
            made=how.made,
            output_made=how.output_made,
            wait_for_room=bool(inside),
            pauses=sorted({each.made for each in inside}),
        )

        async def make_room() -> bool:
            if not inside:
                return False
            made = inside[0].made
            while inside and inside[0].made == made:
                await self._interrupt(inside.popleft())
            return True

        job = GenerationJob(lambda engine: engine.generate(branch.id, options), _finish)
        return await run_waiting(core_of(self.ctx).loop, job, make_room)

    async def run(self, start: Callable[[StepEngine], int]) -> FinishedJob:
        """Runs a job to its end. Raises the error that it failed with."""
        return await core_of(self.ctx).loop.run(Job(start, _finish))

    def spelled(self, token: int) -> str:
        """Text and id of a token, for messages."""
        return f"{core_of(self.ctx).chat.detokenizer.text_of(token)!r} ({token})"

    def _compare_digests(self, began: JobBegan, recorded: bytes, made: bytes) -> None:
        if self.result.compares != "digests" or len(recorded) != len(made):
            return
        was, now = np.frombuffer(recorded, "u8"), np.frombuffer(made, "u8")
        self.result.digests += len(was)
        differ = np.flatnonzero(was != now)
        if len(differ):
            i = int(differ[0])
            self.differs(began, i, "logits", f"{was[i]:016x}", f"{now[i]:016x}")

    def differs(self, began: JobBegan, index: int, what: Any, recorded: str, now: str) -> None:
        """Adds a difference between the recording and this run."""
        seconds = (began.at - self.story.began.at) / 1e9
        self.result.differences.append(Difference(seconds, began.branch, began.job, index, what, recorded, now))


def _finish(finished: FinishedJob) -> FinishedJob:
    if finished.error is not None:
        raise finished.error
    return finished
