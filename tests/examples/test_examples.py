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
    for name in ("agent", "beam", "chat", "desk_agent", "retry", "speculation", "token_loop", "vote"):
        sys.modules.pop(name, None)


async def test_desk_agent_gives_right_answers() -> None:
    import desk_agent
    from nano.skills import tell

    out = io.StringIO()
    agents = await desk_agent.desk_agent(Console(file=out, width=120), None)
    calls = [[(call.name, call.arguments) for call in agent.turn.calls] for agent in agents]
    assert calls == desk_agent.EXPECTED_CALLS
    for agent in agents:
        told = zip(agent.turn.calls, agent.turn.results, strict=True)
        assert agent.turn.answer == " ".join(tell(c.name, c.arguments, r, c.name) for c, r in told)
    assert [len(agent.rollbacks) for agent in agents] == [0, 1, 0, 0, 0]
    assert "rolled back" in out.getvalue()
    assert "adopted" in out.getvalue()


async def test_chat_streams_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    import chat
    from agent import open_trunk

    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        gen = await chat.say(await open_trunk(ctx, ["weather"]), "Hello!")
    assert gen.finish_reason == "eos"
    assert capsys.readouterr().out == gen.text + "\n"


async def test_vote_keeps_the_majority() -> None:
    import vote
    from agent import open_trunk

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        trunk = await open_trunk(ctx, ["calculator", "weather", "stock", "translate"])
        winner, turns = await vote.vote(trunk, vote.QUESTION)
        answers = [turn.answer for turn in turns]
        assert winner == "12 + 30 = 42."
        assert answers.count(winner) == max(map(answers.count, answers))
        assert ctx.branches == [trunk]


async def test_beams_are_ordered_and_the_first_is_greedy() -> None:
    import beam
    from agent import open_trunk

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        trunk = await open_trunk(ctx, ["weather", "stock", "calendar"])
        await trunk.extend([{"role": "user", "content": beam.QUESTION}])
        beams = await beam.search(trunk, set(ctx.tokenizer.eos_ids))
        scores = [found.score for found in beams]
        assert scores == sorted(scores, reverse=True)
        assert all(found.done for found in beams)
        start = len(trunk)
        greedy = await trunk.generate(max_tokens=64)
        assert beams[0].branch.tokens[start:] == greedy.tokens


async def test_retry_returns_what_passed_and_forgets_the_rest() -> None:
    import retry
    from agent import open_trunk

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        branch = await open_trunk(ctx, ["weather", "stock", "calendar"])
        await branch.extend([{"role": "user", "content": retry.QUESTION}])
        start = len(branch)
        seen: list[str] = []

        def third(text: str) -> bool:
            seen.append(text)
            return len(seen) == 3

        gen, attempts = await retry.generate_checked(branch, third, temperature=0.3)
        assert attempts == 3
        assert branch.tokens[start:] == gen.tokens
        await branch.rollback(start)
        with pytest.raises(ValueError, match="no generation passed"):
            await retry.generate_checked(branch, lambda _: False, attempts=2)
        assert len(branch) == start


async def test_token_loops_share_their_forwards() -> None:
    import token_loop
    from agent import open_trunk
    from nano.tools import parse_calls

    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        trunk = await open_trunk(ctx, ["weather", "stock", "calendar"])
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
