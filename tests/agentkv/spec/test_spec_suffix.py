"""Suffix drafts as users meet them: forks that draft from each other, memory, and text that outlives its process."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import agentkv as kv
from agentkv.spec import Suffix
from tests.agentkv.conftest import OpenContext

pytestmark = pytest.mark.anyio

QUESTION = [{"role": "user", "content": "What is the weather in Tolvik, Oresund and Marsholm?"}]
WEATHER = {
    "name": "weather",
    "description": "weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SAMPLING = kv.Sampling(temperature=1.0, seed=7)


def nano(strategy: Suffix | None) -> kv.Context:
    return kv.Context.open(kv.models.nano(), 2048, threads=1, speculative=strategy)


def few(tokens: list[int]) -> int:
    """Forwards for tokens that are all drafted: each has 16 nodes, and one or two tokens come before the first."""
    return len(tokens) // 17 + 2


def corpus_of(folder: Path) -> Path:
    (file,) = folder.glob("*.corpus")
    return file


async def test_eight_forks_that_go_on_alike_draft_from_each_other() -> None:
    async with nano(Suffix(adaptive=False)) as ctx:
        trunk = await ctx.branch(QUESTION, tools=[WEATHER])
        kids = await trunk.fork(8)
        forwards, made = [], []
        for kid in kids:
            before = ctx.stats.forwards
            made.append((await kid.generate(max_tokens=100)).tokens)
            forwards.append(ctx.stats.forwards - before)
        assert made == [made[0]] * 8
        assert len(made[0]) > 40
        assert max(forwards[1:]) <= few(made[0]) < forwards[0]
        # At the same time too; and from text that no branch holds any more.
        await kv.gather(*(kid.rollback(len(trunk)) for kid in kids[1:]))
        kids[0].close()
        before = ctx.stats.forwards
        again = await kv.gather(*(kid.generate(max_tokens=100) for kid in kids[1:]))
        assert [gen.tokens for gen in again] == made[1:]
        assert ctx.stats.forwards - before <= 7 * few(made[0])


async def test_memory_is_bounded_and_told(open_context: OpenContext) -> None:
    async with open_context(speculative=Suffix(max_tokens=4096)) as ctx:
        sizes = []
        for first in range(0, 12_000, 1000):
            async with await ctx.branch([(first * 7 + i * i) % 300 for i in range(1000)]):
                sizes.append(ctx.stats.draft_bytes)
        assert 0 < sizes[0] < sizes[1] < sizes[2]
        assert max(sizes) < 4096 * 320
    async with open_context() as ctx:
        await ctx.branch([7] * 20)
        assert ctx.stats.draft_bytes == 0


async def said(corpus: Path | None) -> tuple[list[int], int]:
    """What nano answers, in how many forwards."""
    strategy = None if corpus is None else Suffix(corpus=corpus, adaptive=False)
    async with nano(strategy) as ctx:
        branch = await ctx.branch(QUESTION)
        before = ctx.stats.forwards
        return (await branch.generate(max_tokens=60, sampling=SAMPLING)).tokens, ctx.stats.forwards - before


async def test_a_later_context_drafts_from_what_an_earlier_one_said(tmp_path: Path) -> None:
    plain, forwards = await said(None)
    first, of_first = await said(tmp_path)
    kept = corpus_of(tmp_path).read_bytes()
    second, of_second = await said(tmp_path)
    assert first == second == plain
    assert of_second <= few(plain) < of_first <= forwards
    assert corpus_of(tmp_path).read_bytes() == kept  # nothing was new


@pytest.mark.parametrize("damage", [b"", b"Dear diary", None], ids=["emptied", "something else", "flipped"])
async def test_a_damaged_corpus_is_left_out_with_a_warning(tmp_path: Path, damage: bytes | None) -> None:
    plain, _ = await said(None)
    await said(tmp_path)
    file = corpus_of(tmp_path)
    data = bytearray(file.read_bytes())
    data[-30] ^= 1
    file.write_bytes(data if damage is None else damage)
    with pytest.warns(UserWarning, match=f"without a corpus: .*{file.name}.*replaced"):
        again, _ = await said(tmp_path)
    assert again == plain
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third, of_third = await said(tmp_path)
    assert third == plain
    assert of_third <= few(plain)


@pytest.mark.parametrize("where", ["file", "file/below", "link"])
async def test_a_corpus_that_can_be_no_folder_is_refused_before_anything_is_said(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("Dear diary")
    (tmp_path / "link").symlink_to("nowhere")
    strategy = Suffix(corpus=tmp_path / where)
    told = rf"corpus is .*{where}, where no text can be kept: .*; give the path of a folder"
    with pytest.raises(kv.InvalidInput, match=told):
        async with nano(strategy):
            pass
    async with nano(None) as ctx:
        branch = await ctx.branch("Who are you?")
        before = branch.tokens
        with pytest.raises(kv.InvalidInput, match=told):
            await branch.generate(max_tokens=4, speculative=strategy)
        assert branch.tokens == before
    assert (tmp_path / "file").read_text() == "Dear diary"


async def test_a_corpus_that_cannot_be_kept_is_warned_of(tmp_path: Path) -> None:
    plain, _ = await said(None)
    folder = tmp_path / "corpus"

    async def lose_the_folder() -> list[int]:
        async with nano(Suffix(corpus=folder, adaptive=False)) as ctx:
            folder.rmdir()
            folder.write_text("")
            branch = await ctx.branch(QUESTION)
            return (await branch.generate(max_tokens=60, sampling=SAMPLING)).tokens

    with pytest.warns(UserWarning, match="the corpus was not kept"):
        assert await lose_the_folder() == plain


async def test_contexts_side_by_side_share_a_corpus(tmp_path: Path) -> None:
    strategy = Suffix(corpus=tmp_path, adaptive=False)

    async def answer(ctx: kv.Context, question: str) -> list[int]:
        branch = await ctx.branch([{"role": "user", "content": question}])
        return (await branch.generate(max_tokens=40)).tokens

    questions = ["Who are you?", "Add 17 and 25."]
    async with nano(strategy) as one, nano(strategy) as other:
        made = [await answer(one, questions[0]), await answer(other, questions[1])]
    async with nano(strategy) as later:
        for question, tokens in zip(questions, made, strict=True):
            before = later.stats.forwards
            assert await answer(later, question) == tokens
            assert later.stats.forwards - before <= few(tokens)
