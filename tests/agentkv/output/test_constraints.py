"""Generations under constraints, on nano: the tokens are those of a plain loop of mask, pick and advance."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import numpy as np
import pytest
from llguidance import LLMatcher
from numpy.typing import NDArray

import agentkv as kv
from agentkv.output._compiler import ConstraintCompiler
from agentkv.output._grammar_matcher import GrammarVocabulary
from tests.waiting import SOON

pytestmark = pytest.mark.anyio

PERSON = kv.JsonSchema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)
LIST = kv.Grammar('start: item ("\\n" item)*\nitem: "- " /[a-z ]{1,20}/')
DATE = kv.Regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
CHOICE = kv.Grammar('start: "yes" | "no" | "I cannot say, since nobody told me"')
GRAMMARS = [PERSON, LIST, DATE, CHOICE]


@pytest.fixture
async def ctx() -> AsyncIterator[kv.Context]:
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx:
        yield ctx


async def asked(ctx: kv.Context, question: str = "Tell me about Bo, who is 30.") -> kv.Branch:
    return await ctx.branch([{"role": "user", "content": question}])


class Oracle:
    """The loop that a user would write: mask, pick, advance. Nothing is forced, drafted or batched."""

    def __init__(self, ctx: kv.Context, source: Any) -> None:
        self.vocabulary = GrammarVocabulary(ctx._core.model.tokenizer, ctx.model_info.vocab_size)
        self.matcher = LLMatcher(self.vocabulary.native, source.grammar, log_level=0)

    def allowed(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self.vocabulary.size].astype(bool)

    async def says(self, branch: kv.Branch, most: int) -> tuple[list[int], str]:
        tokens: list[int] = []
        while not self.matcher.is_stopped():
            if len(tokens) == most:
                return tokens, "length"
            row = await branch.logits()
            tokens.append(int(np.argmax(np.where(self.allowed(), row, -np.inf))))
            await branch.extend([tokens[-1]])
            if tokens[-1] in branch.context.tokenizer.eos_ids:
                return tokens, "eos"
            assert self.matcher.consume_token(tokens[-1])
        return tokens, "stop"


@pytest.mark.parametrize("source", GRAMMARS, ids=lambda source: type(source).__name__)
@pytest.mark.parametrize(
    "speculative",
    [None, kv.spec.PromptLookup(), kv.spec.Suffix(), kv.spec.Eagle(), kv.spec.Mixed(kv.spec.Suffix(), kv.spec.Eagle())],
    ids=["none", "lookup", "suffix", "eagle", "mixed"],
)
async def test_the_tokens_are_those_of_a_plain_loop(ctx: kv.Context, source: Any, speculative: Any) -> None:
    trunk = await asked(ctx)
    plain, branch = await trunk.fork(2)
    tokens, reason = await Oracle(ctx, source).says(plain, 40)
    gen = await branch.generate(output=source, max_tokens=40, speculative=speculative)
    assert (gen.tokens, gen.finish_reason) == (tokens, reason)
    assert gen.text == ctx.tokenizer.decode(tokens)


async def test_what_is_forced_rides_along(ctx: kv.Context) -> None:
    branch = await asked(ctx)
    before = ctx.stats
    gen = await branch.generate(output=kv.Grammar('start: "I have nothing to say about this, whatever happens."'))
    after = ctx.stats
    assert gen.finish_reason == "stop"
    assert gen.text == "I have nothing to say about this, whatever happens."
    assert after.forced > before.forced
    assert after.drafted == before.drafted
    assert after.forwards - before.forwards < len(gen.tokens) / 3


async def test_sampled_output_is_the_same_with_and_without_drafts(ctx: kv.Context) -> None:
    trunk = await asked(ctx)
    for seed in range(4):
        sampling = kv.Sampling(temperature=1.0, seed=seed)
        texts = []
        for speculative in (None, kv.spec.PromptLookup(), kv.spec.Suffix(adaptive=False), kv.spec.Eagle()):
            async with kv.Context.open(kv.models.nano(), capacity=2048, threads=1) as fresh:  # the same random stream
                branch = await asked(fresh)
                gen = await branch.generate(output=PERSON, sampling=sampling, max_tokens=50, speculative=speculative)
                texts.append((gen.tokens, gen.logprobs, gen.finish_reason))
        assert texts == [texts[0]] * 4
    assert not trunk.closed


@pytest.mark.usefixtures("forwards_wait")
async def test_several_branches_and_a_free_one_share_their_forwards(ctx: kv.Context) -> None:
    trunk = await asked(ctx)
    alone = {}
    for source in GRAMMARS:
        alone[source] = (await (await trunk.fork()).generate(output=source, max_tokens=30)).tokens
    free = (await (await trunk.fork()).generate(max_tokens=30)).tokens
    kids = await trunk.fork(len(GRAMMARS) + 1)
    before = ctx.stats.forwards
    outs = await kv.gather(
        *(kid.generate(output=source, max_tokens=30) for kid, source in zip(kids[1:], GRAMMARS, strict=True)),
        kids[0].generate(max_tokens=30),
    )
    assert [out.tokens for out in outs] == [*alone.values(), free]
    assert ctx.stats.forwards - before <= 32


async def test_an_output_cut_short_goes_on(ctx: kv.Context) -> None:
    trunk = await asked(ctx)
    whole = await (await trunk.fork()).generate(output=PERSON, max_tokens=100)
    assert whole.finish_reason == "stop"
    branch = await trunk.fork()
    tokens: list[int] = []
    gen = await branch.generate(output=PERSON, max_tokens=3)
    while gen.finish_reason == "length":
        tokens += gen.tokens
        equal = kv.JsonSchema(PERSON.schema)
        gen = await branch.generate(output=equal, max_tokens=3)
    assert gen.finish_reason == "stop"
    assert tokens + gen.tokens == whole.tokens
    again = await branch.generate(output=PERSON, max_tokens=3)  # another one, since that was complete
    assert again.text.startswith('{"')


async def test_forked_and_rolled_back_grammars_go_on_alike(ctx: kv.Context) -> None:
    trunk = await asked(ctx)
    whole = await trunk.fork()
    gen = await whole.generate(output=PERSON, max_tokens=100)
    assert gen.finish_reason == "stop"
    start = len(trunk)
    for length in range(start + 1, len(whole)):
        back = await whole.fork()
        await back.rollback(length)
        child = await back.fork()
        heir = await ctx.branch("x")
        await heir.adopt(back)
        for branch in (back, child, heir):
            rest = await branch.generate(output=PERSON, max_tokens=100)
            assert branch.tokens == whole.tokens
            assert rest.finish_reason == "stop"
            await branch.close()


async def test_random_cuts_forks_rollbacks_and_drafts_leave_the_output_as_it_is(ctx: kv.Context) -> None:
    rng = random.Random(3)
    trunk = await asked(ctx)
    wanted = {}
    for source in GRAMMARS:
        wanted[source] = await Oracle(ctx, source).says(await trunk.fork(), 40)
    for _ in range(12):
        source = rng.choice(GRAMMARS)
        tokens, reason = wanted[source]
        branch = await trunk.fork()
        done = "length"
        while len(branch) - len(trunk) < len(tokens) and done not in ("stop", "eos"):
            left = len(tokens) - (len(branch) - len(trunk))
            speculative = rng.choice([None, kv.spec.PromptLookup()])
            gen = await branch.generate(output=source, max_tokens=rng.randint(1, left), speculative=speculative)
            done = gen.finish_reason
            assert branch.tokens[len(trunk) :] == tokens[: len(branch) - len(trunk)]
            if rng.random() < 0.3 and len(branch) > len(trunk) + 1:
                await branch.rollback(rng.randint(len(trunk) + 1, len(branch)))
                done = "length" if len(branch) - len(trunk) < len(tokens) else done
            if rng.random() < 0.3:
                branch = await branch.fork()
        assert done == reason
        assert branch.tokens[len(trunk) :] == tokens


async def test_a_cancelled_generation_goes_on_where_it_was(ctx: kv.Context) -> None:
    trunk = await asked(ctx)
    whole = await (await trunk.fork()).generate(output=LIST, max_tokens=200)
    branch = await trunk.fork()
    while len(branch) < len(trunk) + len(whole.tokens):
        with anyio.move_on_after(SOON):
            await branch.generate(output=LIST, max_tokens=200 - (len(branch) - len(trunk)))
    assert branch.tokens[len(trunk) :] == whole.tokens


async def test_streams_keep_to_it(ctx: kv.Context) -> None:
    trunk = await asked(ctx)
    whole = await (await trunk.fork()).generate(output=PERSON, max_tokens=100)
    branch = await trunk.fork()
    async with branch.stream(output=PERSON, max_tokens=100, buffer=2) as stream:
        text = "".join([token.text async for token in stream])
    assert text == whole.text
    assert stream.generation.tokens == whole.tokens
    assert stream.generation.finish_reason == "stop"


async def test_what_is_no_grammar_is_refused_before_anything_runs(ctx: kv.Context) -> None:
    branch = await asked(ctx)
    before = branch.tokens
    with pytest.raises(kv.InvalidInput, match='unknown name: "x"'):
        await branch.generate(output=kv.Grammar("start: x"))
    with pytest.raises(kv.InvalidInput, match='unknown name: "x"'):
        async with branch.stream(output=kv.Grammar("start: x")):
            pass
    for bad in (7, "text", kv.Grammar, object()):
        with pytest.raises(kv.InvalidInput, match="output is"):
            await branch.generate(output=bad)  # type: ignore[arg-type]
    with pytest.raises(kv.InvalidInput, match="lark is"):
        kv.Grammar(7)  # type: ignore[arg-type]
    assert branch.tokens == before


async def test_equal_grammars_are_compiled_once(ctx: kv.Context) -> None:
    grammars: ConstraintCompiler = ctx._core.compiler
    first = grammars.compile(kv.Grammar('start: "a"'))
    assert grammars.compile(kv.Grammar('start: "a"')) is first
    assert grammars.compile(kv.Grammar('start: "b"')) is not first
    for i in range(70):
        grammars.compile(kv.Grammar(f'start: "{i}"'))
    assert grammars.compile(kv.Grammar('start: "a"')) is first  # while somebody holds it
    del first
    for i in range(70):
        grammars.compile(kv.Grammar(f'start: "{i}"'))
    assert not grammars.is_compiled(kv.Grammar('start: "a"'))


async def test_no_control_token_comes_of_a_grammar_of_text(ctx: kv.Context) -> None:
    branch = await asked(ctx)
    gen = await branch.generate(
        output=kv.Regex(r"(.|\n)*"), sampling=kv.Sampling(temperature=3.0, seed=1), max_tokens=80
    )
    special = set(ctx.tokenizer.special_ids)
    assert not special & set(gen.tokens[:-1])
    assert gen.tokens[-1] in ctx.tokenizer.eos_ids or gen.tokens[-1] not in special
