"""Typed output, end to end: the value of a generation, what has none, and what is asked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field

import agentkv as kv

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

HOT = kv.Sampling(temperature=1.0, seed=5)
Digit = Annotated[int, Field(ge=0, le=9)]


class Order(BaseModel):
    item: Literal["tea", "coffee"]
    count: Annotated[int, Field(ge=1, le=99)]
    note: Annotated[str, Field(max_length=6)]
    sizes: Annotated[list[Literal["small", "large"]], Field(min_length=1, max_length=3)]


async def test_plain_text_is_the_output_where_none_is_asked_for(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        mark = trunk.mark()
        free = await trunk.generate(max_tokens=40, sampling=HOT)
        await trunk.rollback(mark)
        gen = await trunk.generate(max_tokens=40, sampling=HOT, output=str, stop=free.text[10:13])
        assert gen.finish_reason == "stop"
        assert gen.output == gen.text == str(gen)
        cut = await trunk.generate(max_tokens=1)
        assert cut.finish_reason == "length"
        with pytest.raises(kv.OutputIncomplete, match="'length'"):
            _ = cut.output


async def test_a_model_of_random_weights_says_values_of_the_type(open_context: OpenContext) -> None:
    async with open_context(capacity=4096) as ctx:
        trunk = await ctx.branch("One order, as JSON:")
        kids = await trunk.fork(12)
        gens = await kv.gather(*(kid.generate(output=Order, max_tokens=200, sampling=HOT) for kid in kids))
        for gen, kid in zip(gens, kids, strict=True):
            assert gen.finish_reason in ("eos", "stop")
            assert isinstance(gen.output, Order)
            assert gen.output is gen.output
            assert Order.model_validate_json(gen.text) == gen.output
            assert kid.tokens[len(trunk) :] == gen.tokens
        assert len({gen.text for gen in gens}) > 6


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (Literal["yes", "no"], str),
        (bool, bool),
        (Digit, int),
        (list[Digit] | None, (list, type(None))),
        (kv.Regex(r"[0-9]{4}-[a-z]{2}"), str),
        (kv.JsonSchema({"enum": [{"a": 1}]}), dict),
        (kv.Grammar('start: "a" "b" | "c"'), str),
    ],
)
async def test_every_kind_of_output(open_context: OpenContext, output: Any, kind: Any) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        gen = await trunk.generate(output=output, max_tokens=400, sampling=HOT)
        assert isinstance(gen.output, kind)
        assert ctx.stats.branches == 1


async def test_an_output_that_was_cut_goes_on(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("One order, as JSON:")
        whole = await (await trunk.fork()).generate(output=Order, max_tokens=200)
        first = await trunk.generate(output=Order, max_tokens=3)
        with pytest.raises(kv.OutputIncomplete, match=r"'length'.*go on"):
            _ = first.output
        fork = await trunk.fork()
        mark = trunk.mark()
        rest = await trunk.generate(output=Order, max_tokens=200)
        assert first.text + rest.text == whole.text
        assert rest.output == whole.output
        await trunk.rollback(mark)
        assert (await trunk.generate(output=Order, max_tokens=200)).output == whole.output
        drafts = kv.spec.PromptLookup() if ctx.model_info.speculates else None
        again = await fork.generate(output=Order, max_tokens=200, speculative=drafts)
        assert (again.output, again.tokens) == (whole.output, rest.tokens)


async def test_an_output_may_be_cut_inside_a_character(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        parts = []
        while not parts or parts[-1].finish_reason == "length":
            parts.append(await trunk.generate(output=kv.Regex("\u00e9\U0001f600{2}"), max_tokens=1))
        assert len(parts) > 5
        assert "".join(part.text for part in parts) == "\u00e9\U0001f600\U0001f600"
        assert parts[-1].output == "\u00e9\U0001f600\U0001f600"


async def test_a_stream_of_a_closed_branch_is_incomplete(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        async with trunk.stream(output=list[Order], buffer=1) as stream:
            await anext(stream)
            await trunk.close()
        with pytest.raises(kv.OutputIncomplete, match="cancelled"):
            _ = stream.generation.output


async def test_drafts_change_nothing(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch('{"item": "tea", "count": 12, "note": "hot", "sizes": ["small", "large"]}')
        for seed in range(5):
            sampling = kv.Sampling(temperature=1.0, seed=seed)
            mark = trunk.mark()
            plain = await trunk.generate(output=Order, max_tokens=200, sampling=sampling)
            await trunk.rollback(mark)
            drafted = await trunk.generate(
                output=Order, max_tokens=200, sampling=sampling, speculative=kv.spec.PromptLookup()
            )
            await trunk.rollback(mark)
            assert drafted == plain
            assert drafted.output == plain.output


async def test_a_stop_string_that_cuts_json_leaves_it_incomplete(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        gen = await trunk.generate(output=Order, stop='"count"', max_tokens=200)
        assert gen.finish_reason == "stop"
        assert gen.text in ('{"item": "tea", ', '{"item": "coffee", ')
        with pytest.raises(kv.OutputIncomplete, match="stop string"):
            _ = gen.output


class Refuses:
    """A validator that refuses the first values."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.seen: list[int] = []

    def __call__(self, value: int) -> int:
        self.seen.append(value)
        if len(self.seen) <= self.times:
            raise ValueError("not this one")
        return value


def number(check: Callable[[int], int]) -> Any:
    return Annotated[int, Field(ge=1000, le=9999), AfterValidator(check)]


@pytest.mark.parametrize("sampling", [None, HOT, kv.Sampling(temperature=1.0)])
async def test_a_refused_value_is_asked_for_again(open_context: OpenContext, sampling: kv.Sampling | None) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("A number:")
        before = len(trunk)
        check = Refuses(1)
        gen = await trunk.generate(output=number(check), sampling=sampling)
        assert len(check.seen) == 2
        assert gen.output == check.seen[1]
        assert trunk.tokens[before:] == gen.tokens
        assert gen.usage.prompt_tokens == before


async def test_greedy_retries_are_repeatable(open_context: OpenContext) -> None:
    async def run() -> list[int]:
        async with open_context() as ctx:
            check = Refuses(3)
            gen = await (await ctx.branch("A number:")).generate(output=number(check), output_retries=3)
            assert gen.output == check.seen[3]
            return check.seen

    first = await run()
    assert await run() == first
    assert len(set(first)) > 2


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_after_the_retries_the_branch_is_as_it_was(open_context: OpenContext, retries: int) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("A number:")
        tokens, logits, cells = trunk.tokens, await trunk.logits(), ctx.stats.cells_used
        check = Refuses(100)
        with pytest.raises(kv.OutputInvalid, match="not this one") as raised:
            await trunk.generate(output=number(check), output_retries=retries)
        assert raised.value.text == str(check.seen[-1])
        assert len(check.seen) == 1 + retries
        assert trunk.tokens == tokens
        assert ctx.stats.cells_used <= cells
        assert (await trunk.logits() == logits).all()


async def test_a_bug_in_a_validator_is_raised_as_it_is(open_context: OpenContext) -> None:
    def broken(value: int) -> int:
        return value // 0

    async with open_context() as ctx:
        trunk = await ctx.branch("A number:")
        tokens = trunk.tokens
        with pytest.raises(ZeroDivisionError):
            await trunk.generate(output=number(broken))
        assert trunk.tokens == tokens
        assert (await trunk.generate(output=Digit)).output in range(10)


async def test_a_stream_has_the_value_at_its_end(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("One order, as JSON:")
        gen = await (await trunk.fork()).generate(output=Order, max_tokens=200)
        async with trunk.stream(output=Order, max_tokens=200) as stream:
            text = "".join([token.text async for token in stream])
        assert text == gen.text
        assert stream.generation == gen
        assert stream.generation.output == gen.output
        async with trunk.stream(output=Order, max_tokens=200) as stream:
            await anext(stream)
        with pytest.raises(kv.OutputIncomplete, match="cancelled"):
            _ = stream.generation.output


async def test_a_refused_value_of_a_stream_stays_on_the_branch(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("A number:")
        async with trunk.stream(output=number(Refuses(1))) as stream:
            text = "".join([token.text async for token in stream])
        with pytest.raises(kv.OutputInvalid, match="not this one") as raised:
            _ = stream.generation.output
        assert raised.value.text == text == stream.generation.text
        assert trunk.text.endswith(text)


@pytest.mark.parametrize(
    "output", [None, "int", b"a", {"type": "integer"}, 5, [int], len, Order.model_construct(), object(), kv.Regex]
)
async def test_what_is_no_output_is_refused(open_context: OpenContext, output: Any) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        tokens = trunk.tokens
        with pytest.raises(kv.InvalidInput, match=r"output is .*(kv\.JsonSchema|pass \w+ itself)"):
            await trunk.generate(output=output)
        with pytest.raises(kv.InvalidInput, match="output is"):
            trunk.stream(output=output)
        assert trunk.tokens == tokens


@pytest.mark.parametrize("retries", [-1, 1.5, True, None, "1"])
async def test_retries_are_a_number(open_context: OpenContext, retries: Any) -> None:
    async with open_context() as ctx:
        with pytest.raises(kv.InvalidInput, match="output_retries"):
            await (await ctx.branch("The")).generate(output=int, output_retries=retries)


async def test_typed_output_takes_half_the_forwards_of_its_tokens() -> None:
    orders: Any = Annotated[list[Order], Field(min_length=2)]
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        trunk = await ctx.branch([{"role": "user", "content": "Two small teas and a large coffee, please."}])
        before, tokens = ctx.stats, 0
        for seed in range(8):
            async with await trunk.fork() as branch:
                sampling = kv.Sampling(temperature=0.7, seed=seed)
                gen = await branch.generate(output=orders, max_tokens=600, sampling=sampling, speculative=None)
                tokens += len(gen.tokens)
        assert (ctx.stats.forwards - before.forwards) / tokens <= 0.5
        assert (ctx.stats.forced - before.forced) / tokens > 0.4
        assert ctx.stats.drafted == before.drafted
