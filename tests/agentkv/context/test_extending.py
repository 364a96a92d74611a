"""Messages that have a branch rewritten, while other tasks are at the same branch."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

import agentkv as kv
from agentkv._context.extend import ExtendOperation
from agentkv._engine.interface import StepEngine
from tests.waiting import PATIENCE, until

from ...runtime.chat_styles import THINKING
from ..conftest import WithTemplate

pytestmark = pytest.mark.anyio

ASKED = [{"role": "user", "content": "Hi."}]
THOUGHT = "<think>\nhm\n</think>\n\nYes."  # that the template drops when the user goes on
MORE = [{"role": "user", "content": "And?"}]


@asynccontextmanager
async def thinking(folder: WithTemplate) -> AsyncIterator[kv.Branch]:
    """A branch whose next messages have it rewritten."""
    async with kv.Context.open(folder(THINKING), capacity=256, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch(ASKED)
        await branch.extend(THOUGHT)
        yield branch


class Adoption:
    """Holds the thread back where a branch is about to adopt its rewritten copy."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.goes_on = threading.Event()
        self._checks = 0

    def check(self, extending: ExtendOperation, engine: StepEngine) -> None:
        """In the place of the second check, which the adoption begins with."""
        self._checks += 1
        if self._checks == 2:
            self.reached.set()
            assert self.goes_on.wait(PATIENCE)
        _check(extending, engine)


_check = ExtendOperation._check


@contextmanager
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adoption]:
    adoption = Adoption()
    with monkeypatch.context() as patch:
        patch.setattr(ExtendOperation, "_check", lambda *args: adoption.check(*args))
        try:
            yield adoption
        finally:
            adoption.goes_on.set()


async def submitted(ctx: kv.Context, verb: Callable[[], object]) -> None:
    """Returns once what `verb` does has sent one more command."""
    count = ctx._core.loop._commands.submitted
    verb()
    await until(lambda: ctx._core.loop._commands.submitted > count)


async def test_a_mark_does_not_hold_behind_a_rewrite_that_came_first(
    with_template: WithTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with thinking(with_template) as branch:
        early = branch.mark()
        refused: list[kv.InvalidRollback] = []

        async def roll_back() -> None:
            try:
                await branch.rollback(early)
            except kv.InvalidRollback as error:
                refused.append(error)

        with held_back(monkeypatch) as adoption:
            async with anyio.create_task_group() as group:
                group.start_soon(branch.extend, MORE)
                await until(adoption.reached.is_set)
                assert len(branch) == early.length, "nobody knows of the rewrite yet"
                await submitted(branch.context, lambda: group.start_soon(roll_back))
                adoption.goes_on.set()
        assert ["rewritten" in str(error) for error in refused] == [True]
        assert branch.text == branch.context.tokenizer.render_chat(branch.messages)
        assert [message.content for message in branch.messages] == ["Hi.", "Yes.", "And?"]
        late = branch.mark()
        await branch.generate(max_tokens=2)
        await branch.rollback(late)


async def cancelled_behind(
    branch: kv.Branch, monkeypatch: pytest.MonkeyPatch, verb: Callable[[], Awaitable[object]] | None
) -> None:
    """An extend that rewrites and is cancelled when it is through, behind another task's verb."""
    with held_back(monkeypatch) as adoption:
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def extend() -> None:
                with scope:
                    await branch.extend(MORE)

            group.start_soon(extend)
            await until(adoption.reached.is_set)
            if verb is not None:
                await submitted(branch.context, lambda: group.start_soon(verb))
            await submitted(branch.context, scope.cancel)
            adoption.goes_on.set()
        assert scope.cancelled_caught


async def test_a_rewrite_that_is_cancelled_keeps_the_marks(
    with_template: WithTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with thinking(with_template) as branch:
        mark, tokens, messages = branch.mark(), branch.tokens, branch.messages
        await cancelled_behind(branch, monkeypatch, None)
        assert (branch.tokens, branch.messages) == (tokens, messages)
        await branch.generate(max_tokens=3)
        await branch.rollback(mark)
        assert (branch.tokens, branch.messages) == (tokens, messages)
        assert branch.context.stats.branches == 1


@pytest.mark.parametrize("verb", ["generate", "close"])
async def test_a_rewrite_that_is_cancelled_when_others_went_on(
    with_template: WithTemplate, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """It stays, and leaves no branch behind."""
    async with thinking(with_template) as branch:

        async def go_on() -> None:
            await (branch.generate(max_tokens=40) if verb == "generate" else branch.close())

        await cancelled_behind(branch, monkeypatch, go_on)
        if verb == "generate":
            assert [message.content for message in branch.messages[:3]] == ["Hi.", "Yes.", "And?"]
            assert branch.messages[-1].role == "assistant"
        await branch.context._core.loop.call(lambda _: None)
        assert branch.context.stats.branches == (verb == "generate")
