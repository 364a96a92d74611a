"""The examples run on the packaged model and do what they say."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

import agentkv as kv

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("approval", "beam", "chat", "desk", "desk_agent", "retry", "speculation", "token_loop", "vote"):
        sys.modules.pop(name, None)


async def test_desk_agent_gives_right_answers() -> None:
    import desk_agent
    from nano.skills import tell

    out = io.StringIO()
    agents = await desk_agent.desk_agent(Console(file=out, width=120), None)
    runs = [agent.run for agent in agents if agent.run is not None]
    assert [[(call.name, call.arguments) for call in run.calls] for run in runs] == desk_agent.EXPECTED_CALLS
    for run in runs:
        assert run.output == " ".join(tell(c.name, dict(c.arguments), c.result, c.name) for c in run.calls)
    assert [len(agent.rollbacks) for agent in agents] == [0, 1, 0, 0, 0]
    assert "rolled back" in out.getvalue()
    assert "adopted" in out.getvalue()


async def test_chat_streams_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    import chat

    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        run = await chat.say(await chat.AGENT.trunk(ctx), "What is the weather in Tolvik?")
    (call,) = run.calls
    assert capsys.readouterr().out == f"[weather {call.content}]\n{run.output}\n"


async def test_vote_keeps_the_majority() -> None:
    import vote

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        won = await vote.vote(ctx, vote.QUESTION)
        assert won.result.output == vote.ANSWER
        assert won.score > 0.5
        assert len(ctx.branches) <= 2  # the winner's, and the prompt that the agent keeps


async def test_beams_print_what_they_find(capsys: pytest.CaptureFixture[str]) -> None:
    import beam

    await beam.main()
    narrow, wide, _ = capsys.readouterr().out.splitlines()
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Tolvik"}}</tool_call>'
    assert narrow.endswith(call)
    assert wide.endswith(call)


async def test_retry_returns_what_passed_and_forgets_the_rest() -> None:
    import retry

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        branch = await retry.AGENT.trunk(ctx)
        start = branch.tokens
        seen: list[str] = []

        def third(run: kv.Run[str]) -> bool:
            seen.append(run.output)
            return len(seen) == 3

        run, attempts = await retry.verified(branch, retry.QUESTION, third, temperature=0.3)
        assert attempts == 3
        assert branch.text.endswith(run.output + "<|im_end|>")
        assert branch.text.count("Oresund?") == 1
        await branch.rollback(len(start))
        with pytest.raises(ValueError, match="no turn passed"):
            await retry.verified(branch, retry.QUESTION, lambda _: False, attempts=2)
        assert branch.tokens == start
        run, _ = await retry.verified(branch, retry.QUESTION, retry.both_cities)
        assert retry.both_cities(run)


async def test_what_a_person_denies_does_not_run() -> None:
    import approval

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        for said, status in ((True, "done"), (False, "denied")):
            asked: list[kv.events.ApprovalAsked] = []

            async def decide(event: kv.events.ApprovalAsked, said: bool = said, asked: list = asked) -> bool:  # type: ignore[type-arg]
                asked.append(event)
                return said

            run = await approval.AGENT.run(await approval.AGENT.trunk(ctx), approval.QUESTION, approve=decide)
            assert [event.call.name for event in asked] == ["send"]
            assert [call.status for call in run.calls if call.name == "send"] == [status]


async def test_token_loops_share_their_forwards() -> None:
    import desk
    import token_loop
    from nano.tools import parse_calls

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        trunk = await desk.agent("weather", "stock", "calendar").trunk(ctx)
        branches = await trunk.fork(4)
        before = ctx.stats.forwards
        eos = set(ctx.tokenizer.eos_ids)
        questions = token_loop.QUESTIONS[:4]
        loops = [
            token_loop.decode(b, q, eos, seed) for seed, (b, q) in enumerate(zip(branches, questions, strict=True))
        ]
        made = await kv.gather(*loops)
        assert ctx.stats.forwards - before < sum(map(len, made))
        for tokens in made:
            assert [call.name for call in parse_calls(ctx.tokenizer.decode(tokens))] == ["weather"]


async def test_every_strategy_gives_the_same_answer_in_fewer_forwards(capsys: pytest.CaptureFixture[str]) -> None:
    import speculation
    from nano.tools import parse_calls

    strategies = [None, kv.spec.PromptLookup(adaptive=False)]
    made = []
    for strategy in strategies:
        async with kv.Context.open(kv.models.nano(), capacity=4096, speculative=strategy) as ctx:
            made.append(await speculation.answer(ctx))
            phrases = speculation.Phrases([ctx.tokenizer.encode(phrase) for phrase in speculation.PHRASES])
            phrases.adaptive = False
            made.append(await speculation.answer(ctx, speculative=phrases))
    plain, forwards = made[0]
    cities = [call.arguments["city"] for call in parse_calls(plain.text)]
    assert cities == ["Tolvik", "Oresund", "Marsholm"]
    assert all(gen == plain for gen, _ in made)
    assert all(count < 0.7 * forwards for _, count in made[1:])
    await speculation.main()
    assert capsys.readouterr().out.endswith(plain.text + "\n")
