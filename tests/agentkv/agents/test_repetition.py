"""Text that repeats itself, and text that does not: one row each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import agentkv as kv
from agentkv.agents.repetition import LEAST, TIMES, Repetition, period_of_end

from .conftest import NO_CALL, desk_agent

pytestmark = pytest.mark.anyio

_TABLE = "| name | price |\n|---|---|\n" + "".join(f"| item {n} | {n * 7 % 50}.00 |\n" for n in range(60))
_CODE = "".join(f"    if value == {n}:\n        return names[{n}]\n" for n in range(60))
_LIST = "".join(f"{n}. Open the box, then close it.\n" for n in range(1, 60))
_ZEROS = "\n".join(["0 " * 10] * 10)
_RULE = "Title\n" + "=" * 120 + "\n" + "-" * 120 + "\nThe end."
_VERSE = ("Row, row, row your boat, gently down the stream. " * 5 + "Life is but a dream. ") * 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([7] * LEAST, 1),
        ([7] * (LEAST - 1), 0),
        ([1, 2] * 200, 2),
        (list(range(100)) + [1, 2, 3] * 100, 3),
        (list(range(100)) * TIMES, 100),
        (list(range(100)) * (TIMES - 1), 0),
        ([1, 2, 3] * 100 + [9], 0),  # it went on
        (list(range(50)) * TIMES + list(range(20)), 50),  # within a period
        ([n // 2 for n in range(600)], 0),
        ([], 0),
        ([1], 0),
    ],
)
def test_the_period_of_an_end(said: list[int], expected: int) -> None:
    assert period_of_end(said) == expected


def repeats(text: str, cut: int = 7) -> bool:
    """With characters for tokens, which repeat sooner than words do: numbers have ten digits."""
    tokens = [ord(character) for character in text]
    found = Repetition()
    return any([found.take(tokens[start : start + cut]) for start in range(0, len(tokens), cut)])


@pytest.mark.parametrize("text", [_TABLE, _CODE, _LIST, _ZEROS, _RULE, _VERSE], ids=lambda text: text[:8])
def test_what_is_no_repetition(text: str) -> None:
    assert not repeats(text)


@pytest.mark.parametrize("cut", [1, 7, 64, 5000])
@pytest.mark.parametrize(
    "text", ["\n" * 400, "ha" * 200, "I am sorry. " * 40, f"{_LIST[:300]} and so on" * 12], ids=lambda text: text[:8]
)
def test_what_is(text: str, cut: int) -> None:
    assert repeats(text, cut)


def test_much_text_is_read_to_its_end() -> None:
    assert repeats("".join(map(str, range(20_000))) + "no " * 200)
    assert not repeats("".join(map(str, range(20_000))))


async def read(agent: kv.Agent[None, str], branch: kv.Branch, keep: bool) -> None:
    async with agent.stream(branch, NO_CALL, keep_partial=keep) as events:
        async for _ in events:
            pass


async def run(agent: kv.Agent[None, str], branch: kv.Branch, keep: bool) -> None:
    await agent.run(branch, NO_CALL, keep_partial=keep)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("turn", [run, read])
async def test_a_message_that_repeats_itself_ends_the_turn(turn: Callable[..., Awaitable[None]], keep: bool) -> None:
    agent = desk_agent("weather")
    async with kv.testing.replies(["Well, " + "I am sorry. " * 300], capacity=4096) as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        with pytest.raises(kv.LimitReached, match="come again and again") as caught:
            await turn(agent, branch, keep)
        assert caught.value.limit == "repetition"
        assert (branch.tokens == before) != keep
        if keep:
            assert branch.messages[-1].content.startswith("Well, I am sorry. I am")
            assert len(branch) < len(before) + 500


@pytest.mark.parametrize(("options", "limit"), [({}, "max_message_tokens"), ({"max_tokens": 20}, "max_tokens")])
async def test_a_message_has_so_many_tokens_at_most(options: dict[str, Any], limit: str) -> None:
    said = " ".join(map(str, range(2000)))
    agent = desk_agent("weather", **options)
    async with kv.testing.replies([said], capacity=4096) as ctx:
        branch = await agent.trunk(ctx)
        with pytest.raises(kv.LimitReached, match=f"cut after {options.get('max_tokens', 1024)} tokens") as caught:
            await agent.run(branch, NO_CALL)
        assert caught.value.limit == limit


@pytest.mark.parametrize(
    ("said", "output"), [(["", "Hello."], "Hello."), ([" \n", "Hello."], "Hello."), (["", ""], None)]
)
async def test_an_empty_message_is_asked_for_again_once(said: list[str], output: str | None) -> None:
    agent = desk_agent("weather")
    async with kv.testing.replies(said) as ctx:
        branch = await agent.trunk(ctx)
        if output is None:
            with pytest.raises(kv.OutputInvalid, match="it is empty"):
                await agent.run(branch, NO_CALL)
        else:
            done = await agent.run(branch, NO_CALL)
            assert (done.output, [message.role for message in done.messages]) == (output, ["user", "assistant"])
