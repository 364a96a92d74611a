"""Strategies as users pass them: per Context, per call, not at all; what is refused, and what a failing one does."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import textwrap
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentkv as kv
from agentkv.spec import Draft, DraftModel, Eagle, Mixed, PromptLookup, Suffix
from agentkv.spec._checked import checked_draft

from ..conftest import OpenContext
from ..strategies import Answers, LastTime, Listener, Recorded

pytestmark = pytest.mark.anyio

PROMPT = [7] * 20  # after which the tiny model repeats itself now and then


async def drafted(ctx: kv.Context, branch: kv.Branch, **options: Any) -> int:
    """Draft tokens that a generation verified."""
    before = ctx.stats.drafted
    async with await branch.fork() as kid:
        await kid.generate(max_tokens=32, **options)
    return ctx.stats.drafted - before


@pytest.mark.parametrize(
    "strategy",
    [
        PromptLookup(adaptive=False),
        Suffix(adaptive=False),
        LastTime(),
        Mixed(Suffix(adaptive=False), LastTime()),
    ],
    ids=["prompt lookup", "suffix", "user's", "mixed"],
)
async def test_per_context_per_call_and_none(open_context: OpenContext, strategy: Any) -> None:
    async with open_context(speculative=strategy) as ctx:
        trunk = await ctx.branch(PROMPT)
        assert await drafted(ctx, trunk) > 0
        assert await drafted(ctx, trunk, speculative=None) == 0
        assert await drafted(ctx, trunk, speculative=strategy) > 0
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        assert await drafted(ctx, trunk) == 0
        assert await drafted(ctx, trunk, speculative=strategy) > 0
        assert await drafted(ctx, trunk) == 0
        assert ctx.stats.draft_seconds > 0


async def test_streams_take_strategies_too(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        plain, other = await trunk.fork(2)
        expected = await plain.generate(max_tokens=24)
        async with other.stream(max_tokens=24, speculative=PromptLookup(adaptive=False)) as stream:
            tokens = [token async for token in stream]
        assert ctx.stats.drafted > 0
        assert [token.id for token in tokens if token.id >= 0] == expected.tokens == stream.generation.tokens
        assert "".join(token.text for token in tokens) == expected.text
        assert stream.generation.logprobs == expected.logprobs


async def test_an_equal_setting_shares_its_drafter_and_an_object_is_itself(open_context: OpenContext) -> None:
    async with open_context(speculative=PromptLookup()) as ctx:
        bound = ctx._core.model.speculation
        trunk = await ctx.branch(PROMPT)
        for strategy in (PromptLookup(), PromptLookup(width=3), PromptLookup(width=3), user := LastTime(), user):
            await trunk.generate(max_tokens=2, speculative=strategy)
        assert len(bound._drafters) == 3
        await trunk.generate(max_tokens=2, speculative=LastTime())
        assert len(bound._drafters) == 4
    assert bound._drafters == {}


async def test_each_context_has_its_own(open_context: OpenContext) -> None:
    strategy = PromptLookup(adaptive=False)
    async with open_context(speculative=strategy) as one, open_context(speculative=strategy) as other:
        await one.branch(PROMPT)
        trunk = await other.branch(list(range(40, 60)))
        assert await drafted(other, trunk) == 0 or other._model.speculation is not one._model.speculation
        drafters = [ctx._core.model.speculation._drafters[strategy] for ctx in (one, other)]
        assert drafters[0] is not drafters[1]


async def test_a_context_lets_go_of_a_strategy(open_context: OpenContext) -> None:
    strategy = LastTime()
    gone = weakref.ref(strategy)
    async with open_context(speculative=strategy) as ctx:
        branch = await ctx.branch(PROMPT)
        await branch.generate(max_tokens=4)
    del strategy, branch, ctx
    gc.collect()
    assert gone() is None


async def test_a_strategy_hears_of_every_branch(open_context: OpenContext) -> None:
    listener = Listener()
    async with open_context(speculative=listener) as ctx:
        trunk = await ctx.branch(PROMPT)
        kid = await trunk.fork()
        await kid.generate(max_tokens=3)
        await trunk.generate(max_tokens=5, speculative=None)
        assert listener.heard[trunk.id] == dict(enumerate(trunk.tokens[:-1]))
        assert listener.heard[kid.id] == dict(list(enumerate(kid.tokens[:-1]))[len(PROMPT) :])
        assert {branch for branch, _, _ in listener.asked} == {kid.id}
        assert all(tokens == kid.tokens[: len(tokens)] for _, tokens, _ in listener.asked)
        assert all(1 <= limit <= 64 for _, _, limit in listener.asked)
        assert set(map(type, listener.features)) == {type(None)}  # this model gives out none


@pytest.mark.parametrize(
    "refused",
    ["prompt lookup", 3, object(), PromptLookup, LastTime, True],
    ids=["str", "int", "object", "class", "class of a user", "bool"],
)
async def test_what_is_no_strategy(open_context: OpenContext, refused: Any) -> None:
    with pytest.raises(kv.InvalidInput, match="speculative"):
        async with open_context(speculative=refused):
            pass
    async with open_context() as ctx:
        branch = await ctx.branch(PROMPT)
        for verb in (branch.generate, branch.stream):
            with pytest.raises(kv.InvalidInput, match="speculative"):
                await verb(speculative=refused)


async def test_a_coroutine_cannot_propose(open_context: OpenContext) -> None:
    class Slow:
        async def propose(self, branch: int, tokens: Any, limit: int) -> None: ...

    with pytest.raises(kv.InvalidInput, match=r"Slow.propose .* plain function"):
        async with open_context(speculative=Slow()):
            pass


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        (lambda: PromptLookup(min_ngram=0), "min_ngram"),
        (lambda: PromptLookup(max_ngram=1), "max_ngram"),
        (lambda: PromptLookup(max_ngram=2.0), "max_ngram"),  # type: ignore[arg-type]
        (lambda: PromptLookup(max_nodes=65), "max_nodes"),
        (lambda: PromptLookup(width=True), "width"),
        (lambda: PromptLookup(adaptive=1), "adaptive"),  # type: ignore[arg-type]
        (lambda: Suffix(max_nodes=0), "max_nodes"),
        (lambda: Suffix(max_tokens=4095), "max_tokens"),
        (lambda: Suffix(corpus=3), "corpus"),  # type: ignore[arg-type]
        (lambda: Suffix(corpus=""), "corpus"),
        (lambda: Suffix(corpus_bytes=1), "corpus_bytes"),
        (lambda: Suffix(adaptive=None), "adaptive"),  # type: ignore[arg-type]
        (lambda: Mixed(Suffix()), "two strategies or more, .* but got 1"),
        (lambda: Mixed([Suffix(), PromptLookup()]), r"Mixed\(one, other\)"),  # type: ignore[arg-type]
        (lambda: Mixed(Suffix(), Suffix()), "each strategy once"),
        (lambda: Mixed(Suffix(), None), "got None"),  # type: ignore[arg-type]
        (lambda: Mixed(Suffix(), PromptLookup), r"the class PromptLookup; call it: PromptLookup\(\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: Mixed(Suffix(), Mixed(Suffix(), Eagle())), "not mixed"),  # type: ignore[arg-type]
        (lambda: DraftModel(3), "path"),  # type: ignore[arg-type]
        (lambda: DraftModel(""), "path"),
        (lambda: DraftModel(kv.Context), "or an open Context on it"),  # type: ignore[arg-type]
        (lambda: DraftModel(kv.Context.open("nano", capacity=64)), "or an open Context on it"),  # type: ignore[arg-type]
        (lambda: DraftModel("x", top_k=0), "top_k"),
        (lambda: Eagle("x", width=0), "width"),
    ],
)
def test_settings_are_checked(setting: Any, field: str) -> None:
    with pytest.raises(kv.InvalidInput, match=field):
        setting()


def test_settings_are_values() -> None:
    for setting in (PromptLookup(max_nodes=3), Suffix(corpus="a"), DraftModel("a"), Eagle()):
        assert setting == dataclasses.replace(setting)
        assert hash(setting) == hash(dataclasses.replace(setting))
        assert setting != dataclasses.replace(setting, adaptive=False)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setting.adaptive = False  # type: ignore[misc]
    assert DraftModel("a") == DraftModel(Path("a"))
    assert Suffix(corpus="a") == Suffix(corpus=Path("a"))
    assert Mixed(Suffix(), Eagle()) == Mixed(Suffix(), Eagle()) != Mixed(Eagle(), Suffix())
    assert hash(Mixed(Suffix(), Eagle())) == hash(Mixed(Suffix(), Eagle()))


def test_a_chain_is_a_tree_in_which_each_follows_the_last() -> None:
    draft = Draft.chain(np.array([7, 8, 9], dtype=np.int32))
    assert (list(draft.tokens), list(draft.parents), draft.confidence) == ([7, 8, 9], [-1, 0, 1], None)
    assert all(type(token) is int for token in draft.tokens)


MALFORMED = {
    "token outside": (Draft([5, 9999], [-1, 0]), "node 1 of the draft is token 9999"),
    "negative token": (Draft([-3], [-1]), "node 0 of the draft is token -3"),
    "later parent": (Draft([5, 6, 7], [-1, 2, 0]), "node 1 of the draft has parent 2"),
    "own parent": (Draft([5, 6], [-1, 1]), "node 1 of the draft has parent 1"),
    "negative parent": (Draft([5], [-2]), "node 0 of the draft has parent -2"),
    "twins": (Draft([5, 6, 5], [-1, -1, -1]), "nodes 0 and 2"),
    "confidence 0": (Draft([5], [-1], [0.0]), "node 0 of the draft has confidence 0"),
    "confidence 2": (Draft([5, 6], [-1, 0], [0.5, 2.0]), "node 1 of the draft has confidence 2"),
    "confidence nan": (Draft([5], [-1], [float("nan")]), "node 0 of the draft has confidence"),
    "fewer parents": (Draft([5, 6], [-1]), "2 tokens, 1 parents"),
    "more confidences": (Draft([5], [-1], [0.5, 0.5]), "2 confidences"),
    "no draft": ([5, 6], r"it returned list \[5, 6\], but it must return None or a kv.spec.Draft"),
    "a text": ("five", "it returned str 'five', but it must return None or a kv.spec.Draft"),
    "words": (Draft(["five"], [-1]), "tokens of the draft have str 'five' for node 0"),  # type: ignore[list-item]
    "half a parent": (Draft([5], [0.5]), "parents of the draft have float 0.5 for node 0"),  # type: ignore[list-item]
    "a huge parent": (Draft([5], [2**40]), "node 0 of the draft has parent 1099511627776"),
    "a huge token": (Draft([2**70], [-1]), "node 0 of the draft is token 1180591620717411303424"),
    "a word of confidence": (Draft([5], [-1], ["sure"]), "confidences of the draft have str 'sure'"),  # type: ignore[list-item]
    "one token": (Draft(5, [-1]), "tokens of the draft are int 5"),  # type: ignore[arg-type]
    "raises": (ValueError("out of ideas"), "ValueError: out of ideas"),
    "raises a surrogate": (ValueError("lone \ud800"), r"ValueError: lone \?"),
}


@pytest.mark.parametrize(("answer", "message"), MALFORMED.values(), ids=list(MALFORMED))
async def test_a_failing_strategy_fails_its_generation_alone(
    open_context: OpenContext, answer: Any, message: str
) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        one, two = await trunk.fork(2)
        plain = await (await trunk.fork()).generate(max_tokens=12)
        failed: list[kv.StepFailed] = []

        async def fail() -> None:
            with pytest.raises(kv.StepFailed, match=message) as caught:
                await one.generate(max_tokens=12, speculative=Answers(answer))
            failed.append(caught.value)

        _, other = await kv.gather(fail(), two.generate(max_tokens=12))
        assert str(failed[0]).startswith("speculation failed: Answers.propose")
        assert other.tokens == plain.tokens
        # The branch keeps what it had made, and goes on from there.
        made = one.tokens[len(trunk) :]
        assert made == plain.tokens[: len(made)]
        rest = await one.generate(max_tokens=12 - len(made))
        assert made + rest.tokens == plain.tokens


class Looked(Sequence[int]):
    """Nodes that count how often they are looked at."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values
        self.looks = 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return self.values[index]


def test_no_more_of_a_draft_is_looked_at_than_there_is_room_for() -> None:
    n, limit = 100_000, 16
    tokens, parents = Looked(range(n)), Looked(range(-1, n - 1))
    draft = checked_draft(Draft(tokens, parents, [0.5] * (n - 1) + [7.0]), n, limit)
    assert (list(draft.tokens), list(draft.parents)) == ([*range(16)], [*range(-1, 15)])
    assert draft.confidence == [0.5] * 16
    assert tokens.looks == parents.looks == limit


def test_a_wide_draft_is_checked_in_one_pass() -> None:
    n = 100_000
    tokens, parents = Looked([*range(n - 1), 0]), Looked([-1] * n)
    with pytest.raises(kv.InvalidInput, match="nodes 0 and 99999"):
        checked_draft(Draft(tokens, parents), n, n)
    assert tokens.looks == parents.looks == n


async def test_what_observe_raises_ends_the_next_generation_that_asks(open_context: OpenContext) -> None:
    listener = Listener()

    def fail() -> None:
        raise RuntimeError("cannot listen")

    async with open_context(speculative=listener) as ctx:
        trunk = await ctx.branch(PROMPT)
        listener.on_observe = fail
        await trunk.generate(max_tokens=4, speculative=None)
        listener.on_observe = None
        with pytest.raises(kv.StepFailed, match=r"Listener\.observe: RuntimeError: cannot listen"):
            await trunk.generate(max_tokens=4)
        assert (await trunk.generate(max_tokens=4)).tokens


@pytest.mark.usefixtures("forwards_wait")
async def test_eight_branches_draft_in_one_forward_per_round(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        vocab = ctx.model_info.vocab_size
        kids = await trunk.fork(8)
        await kv.gather(*(kid.extend([60 + i]) for i, kid in enumerate(kids)))
        marks = [kid.mark() for kid in kids]
        plain = await kv.gather(*(kid.generate(max_tokens=29) for kid in kids))
        right = Recorded([kid.tokens for kid in kids], vocab, depth=6)
        await kv.gather(*(kid.rollback(mark) for kid, mark in zip(kids, marks, strict=True)))
        before, seen = ctx.stats, len(ctx.steps)
        outs = await kv.gather(*(kid.generate(max_tokens=29, speculative=right) for kid in kids))
        after, steps = ctx.stats, ctx.steps[seen:]
        assert outs == plain
        assert after.accepted - before.accepted == after.drafted - before.drafted
        assert {step.forwards for step in steps} == {1}
        assert after.forwards - before.forwards == after.steps - before.steps == len(steps) <= 5
        longest = max(len(out.tokens) for out in outs)
        assert len(steps) >= longest / 7
        assert max((step.branches, step.decode_rows) for step in steps) == (8, 8 * 7)


async def test_a_model_that_drafts_for_itself_is_right(open_context: OpenContext, folder: Path) -> None:
    strategy = DraftModel(folder, width=1, top_k=1, adaptive=False)
    async with open_context(speculative=strategy) as ctx:
        trunk = await ctx.branch(PROMPT)
        plain = await (await trunk.fork()).generate(max_tokens=40, speculative=None)
        steps = ctx.stats.steps
        assert await (await trunk.fork()).generate(max_tokens=40) == plain
        assert ctx.stats.accepted >= 0.9 * ctx.stats.drafted > 0
        assert ctx.stats.steps - steps <= 20
        assert ctx.stats.draft_seconds > 0


async def test_a_worker_of_its_own_drafts_for_another_context(open_context: OpenContext, folder: Path) -> None:
    async with contextlib.AsyncExitStack() as working:
        worker = await working.enter_async_context(open_context())
        strategy = DraftModel(worker, width=1, top_k=1, adaptive=False)
        assert strategy == DraftModel(folder, width=1, top_k=1, adaptive=False)
        async with open_context(speculative=strategy) as planner:
            at_work, trunk = await worker.branch(PROMPT), await planner.branch(PROMPT)
            plain = await (await trunk.fork()).generate(max_tokens=40, speculative=None)
            kids = [await trunk.fork() for _ in range(2)]
            assert await kv.gather(*[each.generate(max_tokens=40) for each in (at_work, kids[0])]) == [plain, plain]
            await working.aclose()
            drafted = planner.stats.drafted
            assert await kids[1].generate(max_tokens=40) == plain
            assert planner.stats.accepted >= 0.9 * planner.stats.drafted > drafted > 0


@pytest.mark.parametrize("where", ["Context", "call"])
async def test_a_draft_for_another_model_is_refused(
    open_context: OpenContext, folder: Path, tmp_path: Path, where: str
) -> None:
    async def use(strategy: Any) -> None:
        if where == "Context":
            async with open_context(speculative=strategy):
                pass
        else:
            async with open_context() as ctx:
                branch = await ctx.branch(PROMPT)
                try:
                    await branch.generate(speculative=strategy)
                finally:
                    assert (await branch.generate(max_tokens=3)).tokens

    with pytest.raises(kv.DraftMismatch, match=r"1024 and 384 tokens") as caught:
        await use(DraftModel(kv.models.nano()))
    assert str(folder) in str(caught.value)
    assert str(kv.models.nano()) in str(caught.value)
    with pytest.raises(kv.DraftMismatch, match=r"has no draft.pte"):
        await use(Eagle())
    with pytest.raises(kv.ModelError, match="no such folder"):
        await use(DraftModel("/nowhere"))
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    with pytest.raises(kv.ModelError, match=r"small\.gguf: a draft model is a model folder\. Open the file"):
        await use(DraftModel(tmp_path / "small.gguf"))
    with pytest.raises(kv.ModelError, match="/nowhere"):
        await use(Eagle("/nowhere"))


async def test_the_strategy_that_the_documentation_shows(open_context: OpenContext) -> None:
    doc = kv.spec.Strategy.__doc__
    assert doc is not None
    shown = textwrap.dedent(doc[doc.index("        class ") : doc.index("        gen = ")].replace("'''", '"""'))
    assert len(shown.strip().splitlines()) <= 20
    scope: dict[str, Any] = {"np": np, "kv": kv}
    exec(compile(shown, "strategy.py", "exec"), scope)
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        one, other = await trunk.fork(2)
        expected = await one.generate(max_tokens=32)
        strategy = scope["LastTime"]()
        strategy.adaptive = False  # whether a guess pays on a model as tiny as this one is the machine's say
        assert await other.generate(max_tokens=32, speculative=strategy) == expected
        assert ctx.stats.drafted > 0
