"""The examples run on the packaged model and do what they say."""

from __future__ import annotations

import io
import itertools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from rich.console import Console

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from tests.agentkv.remote.over_server import own_server
from tests.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for example in EXAMPLES.glob("*.py"):
        sys.modules.pop(example.stem, None)


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


async def test_desk_agent_runs_over_a_server_with_one_line_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    import desk_agent

    thread = LoopThread(lambda: own_server(kv.models.nano(), capacity=4096, threads=1))
    opened = lambda *_, **__: kv.Context.connect(thread.value.url, backend="agentkv")  # noqa: E731
    monkeypatch.setattr(kv.Context, "open", opened)
    agents = await desk_agent.desk_agent(Console(file=io.StringIO(), width=120), None)
    runs = [agent.run for agent in agents if agent.run is not None]
    assert [[(call.name, call.arguments) for call in run.calls] for run in runs] == desk_agent.EXPECTED_CALLS
    assert [len(agent.rollbacks) for agent in agents] == [0, 1, 0, 0, 0]
    thread.close()


async def test_chat_streams_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    import chat

    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        run = await chat.say(await chat.AGENT.trunk(ctx), "What is the weather in Tolvik?")
    (call,) = run.calls
    assert capsys.readouterr().out == f"[weather {call.content}]\n{run.output}\n"


async def test_ctrl_c_stops_an_answer_and_keeps_what_was_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import chat

    printed = ""

    def show(text: str = "\n", **_: object) -> None:
        nonlocal printed
        printed += text
        if printed.endswith("56"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat, "print", show, raising=False)
    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        branch = await chat.AGENT.trunk(ctx)
        with anyio.fail_after(PATIENCE):
            await chat.say_until_ctrl_c(branch, "What is 7 * 8?")
        assert printed.endswith(" (stopped)")
        kept = branch.messages[-1]
        assert kept.role == "assistant"
        assert printed == f"[calculator {branch.messages[-2].content}]{kept.content} (stopped)"


async def test_a_chat_goes_on_from_its_transcript(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import chat

    said: list[dict[str, object]] = []
    for question, messages in (("What is 7 * 8?", 5), ("Thank you!", 7)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{question}\n"))
        await chat.chat(said)
        said = json.loads(json.dumps(said))
        assert len(said) == messages
    assert capsys.readouterr().out.count("[calculator") == 1


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


async def test_tools_of_one_message_run_at_once() -> None:
    import parallel_tools

    began = 0
    together = anyio.Event()

    async def network() -> None:
        """Nobody is served before all three have asked."""
        nonlocal began
        began += 1
        if began == 3:
            together.set()
        with anyio.fail_after(PATIENCE):
            await together.wait()

    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        trunk = await parallel_tools.AGENT.trunk(ctx)
        run, spans = await parallel_tools.timed(trunk, parallel_tools.QUESTION, network)
    assert [call.arguments["city"] for call in run.calls] == ["Tolvik", "Oresund", "Marsholm"]
    assert [(call.status, call.attempts) for call in run.calls] == [("done", 1)] * 3
    assert parallel_tools.at_once(spans) == 3
    assert parallel_tools.at_once(spans[:1]) == 1


async def test_a_slow_agent_and_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import slow_agent

    from agentkv import trace

    await slow_agent.main(tmp_path)
    said = capsys.readouterr().out.split("quickly: ")
    assert said[0].splitlines()[1:] == said[1].splitlines()[1:]
    slowly, quickly = [await trace.replay(tmp_path / f"{name}.trace") for name in ("slowly", "quickly")]
    assert slowly.same
    assert quickly.same


async def test_sub_agents_vote_behind_a_tool() -> None:
    import sub_agents

    minutes: list[str] = []
    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        trunk = await sub_agents.MANAGER.trunk(ctx)
        async with kv.testing.no_leaks(ctx):
            run = await sub_agents.MANAGER.run(trunk, sub_agents.QUESTION, deps=minutes)
    assert [call.result for call in run.calls] == [{"result": 56}]
    assert minutes[0].startswith("7 * 8: 56 with ")


async def test_the_majority_of_sub_agents_wins() -> None:
    """Whatever the model would say: two of the five are wrong."""
    import sub_agents

    wrong = itertools.count()

    def reply(text: str) -> kv.testing.Reply:
        if "weather in a city" not in text:  # the manager's branch: only its sub-agents have that tool
            asks = kv.testing.call("calculator", expression="7 * 8")
            return asks if "tool_response" not in text else "It is 56."
        if "tool_response" in text:
            return "Done."
        expression = ("7 * 9", "7 * 8", "7 * 9", "7 * 8", "7 * 8")[next(wrong)]
        return kv.testing.call("calculator", expression=expression)

    minutes: list[str] = []
    async with kv.testing.replies(reply, capacity=2048) as ctx:
        trunk = await sub_agents.MANAGER.trunk(ctx)
        run = await sub_agents.MANAGER.run(trunk, sub_agents.QUESTION, deps=minutes)
    assert run.output == "It is 56."
    assert minutes == ["7 * 8: 56 with 60% of the votes"]


async def test_letters_become_orders_at_once() -> None:
    import extraction

    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        async with kv.testing.no_leaks(ctx):
            orders = await extraction.extract_all(ctx, extraction.LETTERS)
        assert len(orders) == len(extraction.LETTERS)
        assert all(isinstance(order, extraction.Order) or order is None for order in orders)
        assert ctx.stats.forwards < 0.5 * ctx.stats.generated


async def test_an_order_without_a_name_is_asked_for_again() -> None:
    import extraction

    order = {"customer": "Ada", "number": "K1", "total": 4.5, "items": [{"product": "Lumora", "count": 2}]}
    whole, unnamed = json.dumps(order), json.dumps({**order, "customer": " "})
    for said, found in (([unnamed, unnamed, whole], extraction.Order(**order)), ([unnamed] * 3, None)):
        async with kv.testing.replies(said, capacity=1024) as ctx:
            assert await extraction.extract_all(ctx, ["Ada ordered 2 Lumora."]) == [found]


async def test_a_conversation_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import resume

    first = await resume.main(tmp_path / "desk")
    assert capsys.readouterr().out == f"{resume.QUESTIONS[0]}\n  {first}\n"
    second = await resume.main(tmp_path / "desk")
    printed = capsys.readouterr().out
    assert printed.startswith("resumed: ")
    assert ", 0 computed again" in printed
    assert printed.endswith(f"{resume.QUESTIONS[1]}\n  {second}\n")


@pytest.mark.parametrize("framework", ["pydantic_ai", "openai_agents", "langchain"])
def test_agents_of_other_frameworks_change_one_line(framework: str) -> None:
    """In a process of its own: it asks from several event loops, or from none."""
    ended = subprocess.run(
        [sys.executable, EXAMPLES / f"with_{framework}.py"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    weather, answer = ended.stdout.splitlines()
    assert weather == "It is 0 degrees and foggy in Tolvik. It is 34 degrees and windy in Brasno."
    cached, prompt = (int(word) for word in re.findall(r"[0-9]+", answer))
    assert answer.startswith("I am Nano, your desk agent.")
    assert cached > prompt * 0.9


async def test_tools_of_an_mcp_server() -> None:
    import mcp_tools
    from nano.tools import TOOLS

    run = await mcp_tools.ask("What is the weather in Tolvik and in Brasno?")
    assert [call.result for call in run.calls] == [TOOLS["weather"].run(city) for city in ("Tolvik", "Brasno")]


def test_an_agent_that_dies_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "crash_agent.py"), str(tmp_path)]
    dies, goes_on = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2)]
    assert dies.returncode == -signal.SIGKILL
    assert dies.stdout.splitlines()[-1] == "The message is sent, and the process dies."
    assert goes_on.returncode == 0, goes_on.stderr
    assert goes_on.stdout.splitlines() == [
        "(went on)",
        "  Sent to Mirela: the lunch is at 12:30.",
        "Thank you!",
        "  You are welcome.",
    ]
    assert [path.read_text() for path in tmp_path.glob("*.txt")] == ["Mirela: the lunch is at 12:30\n"]


async def test_the_first_way_that_passes_is_adopted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import three_ways

    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path))
    await three_ways.main(None)
    said = capsys.readouterr().out
    assert said.startswith("Scripted replies, no model's own:\n")
    assert "  way 2: passes\n" in said
    assert "+    if not numbers:\n+        return 0\n" in said
    assert said.endswith("  applied to the project: average.py\n  its tests pass now\n")
