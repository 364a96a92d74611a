"""Contexts for code that does not await, branches and streams of theirs."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv._engine.worker import EngineWorker
from tests.waiting import PATIENCE, until_sync

QUESTION = [{"role": "user", "content": "Who are you?"}]
ANSWER = "I am Nano, your desk agent."


@pytest.fixture
def ctx() -> Iterator[kv.SyncContext]:
    with kv.Context.open(kv.models.nano(), capacity=2048, threads=1).sync() as ctx:
        yield ctx


def endless(ctx: kv.SyncContext) -> kv.Sampling:
    return kv.Sampling(logit_bias=dict.fromkeys(ctx.tokenizer.eos_ids, -100.0))


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agentkv-loop"]


def test_verbs_do_what_those_of_a_context_do(ctx: kv.SyncContext, tmp_path: Path) -> None:
    branch = ctx.branch(QUESTION)
    mark = branch.mark("asked")
    with branch.fork() as fork:
        assert fork.generate(max_tokens=32).text == ANSWER
    assert fork.closed
    one, two = branch.fork(2)
    two.generate(max_tokens=3)
    branch.adopt(two)
    assert len(branch) == len(one) + 3
    branch.rollback(mark)
    assert branch.tokens == one.tokens
    assert branch.select(["yes", "no"]).text in ("yes", "no")
    assert branch.logits().shape == (ctx.model_info.vocab_size,)
    ctx.save(tmp_path / "both.kv", {"branch": branch, "one": one})
    loaded = ctx.load_all(tmp_path / "both.kv")
    assert loaded["one"].tokens == one.tokens
    assert loaded["branch"].marks.keys() == {"asked"}
    branch.save(tmp_path / "one.kv")
    assert ctx.load(tmp_path / "one.kv").messages == branch.messages
    ctx.keep(branch)
    assert [each.awaited for each in ctx.branches] == [branch.awaited]
    assert ctx.stats.cells_used == len(branch) - 1 or ctx.stats.cells_used == len(branch)


def test_streams_hand_out_tokens_and_keep_what_was_read(ctx: kv.SyncContext) -> None:
    branch = ctx.branch(QUESTION)
    with branch.stream(sampling=endless(ctx), max_tokens=500) as tokens:
        read = [next(tokens) for _ in range(5)]
    assert [token.id for token in read] == branch.tokens[-5:] == tokens.generation.tokens
    assert tokens.generation.finish_reason == "cancelled"
    with branch.stream(max_tokens=4) as tokens:
        assert len(list(tokens)) == len(tokens.generation.tokens)


def test_turns_are_started_steered_and_stopped(ctx: kv.SyncContext) -> None:
    agent = kv.Agent("You are Nano, a desk agent.")
    with ctx.trunk(agent) as trunk:
        turn = trunk.start(agent, "Who are you?")
        turn.pause()
        assert (turn.paused, turn.done) == (True, False)
        words = turn.steer("Who are you?")
        turn.resume()
        assert any(isinstance(event, kv.events.Finished) for event in turn.events())
        assert words.entered
        assert turn.done
        assert turn.wait().output == ANSWER
        assert "done" in repr(turn)
        turn = trunk.start(agent, "Who are you?")
        turn.pause()
        (fork,) = turn.fork(1)
        assert fork.paused
        with pytest.raises(kv.WrongEventLoop):
            fork.awaited.resume()
        fork.resume()
        assert fork.wait().output == ANSWER
        assert fork.branch.messages[-1].content == ANSWER
        turn.stop(keep=False)
        with pytest.raises(kv.TurnStopped):
            turn.wait()
        with pytest.raises(kv.TurnNotRunning):
            turn.steer("And?")


def test_agents_and_other_coroutines_run_as_well(ctx: kv.SyncContext) -> None:
    branch = ctx.branch(QUESTION)
    agent = kv.Agent("You are Nano, a desk agent.")
    with ctx.trunk(agent) as trunk:
        assert trunk.run(agent, "Who are you?").output == ANSWER
    with pytest.raises(kv.InvalidInput, match="SyncContext"):
        ctx.wait(agent.trunk(ctx))  # type: ignore[arg-type]
    forks = branch.fork(3)
    made = ctx.wait(kv.gather(*(fork.awaited.generate(max_tokens=4) for fork in forks)))
    assert len({each.text for each in made}) == 1


def test_threads_share_forwards(ctx: kv.SyncContext) -> None:
    branches = ctx.branch(QUESTION).fork(8)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda branch: branch.generate(max_tokens=200, sampling=endless(ctx)), branches))
    assert len({each.text for each in made}) == 1
    assert max(step.decode_rows for step in ctx.steps) > 1


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_tool_that_ends_the_program_ends_its_callers_and_not_the_context(
    ctx: kv.SyncContext, error: BaseException, waits: bool
) -> None:
    async def waiting(city: str) -> str:
        raise error

    def working(city: str) -> str:
        raise error

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool: kv.Tool[None, ..., str] = kv.Tool("weather", "weather in a city", schema, waiting if waits else working)
    agent = kv.Agent("You are Nano, a desk agent.", tools=[tool])
    trunk = ctx.wait(agent.trunk(ctx.awaited))
    with pytest.raises(type(error)) as raised:
        ctx.wait(agent.run(trunk, "What is the weather in Oslo?"))
    assert raised.value.args == error.args
    assert ctx.branch(QUESTION).generate(max_tokens=32).text == ANSWER


def test_ctrl_c_ends_a_generation_and_keeps_what_was_made(ctx: kv.SyncContext, monkeypatch: pytest.MonkeyPatch) -> None:
    branch = ctx.branch(QUESTION)
    before = len(branch)

    loop, step = ctx.awaited._core.loop, EngineWorker.step

    def interrupted(worker: EngineWorker) -> Any:
        if len(ctx.steps) == begun + 5:
            os.kill(os.getpid(), signal.SIGINT)
            until_sync(lambda: loop._commands.unfinished())  # the cancellation is on its way
        return step(worker)

    begun = len(ctx.steps)
    monkeypatch.setattr(EngineWorker, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        branch.generate(max_tokens=1900, sampling=endless(ctx))
    assert before < len(branch) < before + 1900
    branch.rollback(before)
    assert branch.generate(max_tokens=32).text == ANSWER


def test_errors_are_those_of_the_verbs(ctx: kv.SyncContext) -> None:
    branch = ctx.branch(QUESTION)
    with pytest.raises(kv.InvalidInput):
        branch.generate(max_tokens=0)
    with pytest.raises(kv.InvalidInput):
        branch.stream(max_tokens=0)
    branch.close()
    branch.close()
    with pytest.raises(kv.BranchClosed):
        branch.extend("a")
    ctx.close()
    ctx.close()
    for verb in (lambda: ctx.branch("a"), branch.logits, lambda: list(branch.stream()), ctx.compact):
        with pytest.raises(kv.ContextClosed):
            verb()
    assert not loop_threads()


def test_whatever_can_be_awaited_is_waited_for(ctx: kv.SyncContext) -> None:
    branch = ctx.branch(QUESTION)
    ctx.wait(branch.awaited.close())
    assert branch.closed
    for wrong in (5, None, branch):
        with pytest.raises(kv.InvalidInput, match="await"):
            ctx.wait(wrong)  # type: ignore[arg-type]


def test_a_branch_that_outlives_its_context_is_closed_in_silence() -> None:
    with kv.Context.open(kv.models.nano(), capacity=256, threads=1).sync() as ctx:
        branch = ctx.branch(QUESTION)
    branch.close()


def test_threads_that_use_it_while_it_closes_are_told() -> None:
    for _ in range(5):
        ctx = kv.Context.open(kv.models.nano(), capacity=2048, threads=1).sync()

        def work(ctx: kv.SyncContext = ctx) -> None:
            while True:
                with ctx.branch(QUESTION) as branch, branch.stream(max_tokens=8) as tokens:
                    list(tokens)

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work) for _ in range(4)]
            until_sync(lambda ctx=ctx: ctx.steps)
            ctx.close()
            for each in working:
                assert isinstance(each.exception(PATIENCE), kv.ContextClosed)


def test_one_that_nobody_has_is_closed() -> None:
    def made() -> str:
        ctx = kv.Context.open(kv.models.nano(), capacity=256, threads=1).sync()
        return ctx.branch(QUESTION).generate(max_tokens=32).text

    assert made() == ANSWER
    gc.collect()
    until_sync(lambda: not loop_threads())  # whoever finds it waits for nothing


def test_what_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(kv.ModelError):
        kv.Context.open(tmp_path).sync()
    with pytest.raises(kv.InvalidInput):
        kv.Context.open(kv.models.nano(), capacity=-1).sync()
    assert not loop_threads()


def test_an_open_context_is_for_other_threads_as_well() -> None:
    async def main() -> None:
        async with kv.Context.open(kv.models.nano(), capacity=512, threads=1) as ctx:
            blocking = ctx.sync()

            def elsewhere() -> str:
                with blocking.branch(QUESTION) as branch:
                    return branch.generate(max_tokens=32).text

            assert await asyncio.to_thread(elsewhere) == ANSWER
            with pytest.raises(kv.WrongEventLoop, match="await"):
                blocking.branch(QUESTION)
            blocking.close()
            branch = await ctx.branch(QUESTION)  # it is not the facade's to close
            assert (await branch.generate(max_tokens=32)).text == ANSWER
        with pytest.raises(kv.ContextClosed):
            ctx.sync()

    asyncio.run(main())


def test_the_thread_that_everybody_waits_for_waits_for_nobody() -> None:
    """Garbage is collected on any thread, and a strategy may ask for anything."""
    told: list[str] = []
    with kv.Context.open(kv.models.nano(), capacity=512, threads=1).sync() as ctx:
        other = ctx.branch(QUESTION)

        class Asking:
            def propose(self, branch: int, tokens: Any, limit: int) -> None:
                if told:
                    return
                other.close()
                try:
                    ctx.branch(QUESTION)
                except kv.WrongEventLoop as error:
                    told.append(str(error))

        with ctx.branch(QUESTION) as branch:
            assert branch.generate(max_tokens=32, speculative=Asking()).text == ANSWER
            assert len(told) == 1
            assert [each.awaited for each in ctx.branches] == [branch.awaited]


def test_one_that_is_closed_on_its_own_step_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where garbage may be collected at any moment."""
    ctx = kv.Context.open(kv.models.nano(), capacity=512, threads=1).sync()
    branch, absorb, closed = ctx.branch(QUESTION), EngineWorker._apply_report, threading.Event()

    def closing(worker: EngineWorker, report: Any) -> None:
        if not closed.is_set():
            ctx.close()
            closed.set()
        absorb(worker, report)

    monkeypatch.setattr(EngineWorker, "_apply_report", closing)
    with pytest.raises(kv.ContextClosed):
        branch.generate(max_tokens=400, sampling=endless(ctx))
    ctx.close()
    assert loop_threads() == []


def test_garbage_that_is_found_in_a_verb_waits_for_nothing() -> None:
    script = f"""
import gc
import agentkv as kv

class Garbage:
    def __init__(self): self.me, self.branch = self, ctx.branch("hello")
    def __del__(self): self.branch.close()

ctx = kv.Context.open({str(kv.models.nano())!r}, 2048, threads=1).sync()
trunk = ctx.branch({QUESTION!r})
gc.disable()
for turn in range(40):
    Garbage()
    gc.set_threshold(5 + turn)
    gc.enable()
    trunk.fork().generate(max_tokens=8)
    gc.disable()
gc.collect()
print(len([branch for branch in ctx.branches if branch.text == "hello"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_contexts_of_trio_are_awaited(anyio_backend: str) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=64) as ctx:
        with pytest.raises(kv.WrongEventLoop, match="trio"):
            ctx.sync()
