"""Budgets of reasoning. The model is nano; what closes its thought is a text that it writes, or one that it never does.

What must come is put together from what comes without a budget: its first tokens, the tokens that close a thought, and
what a branch says that was extended by these."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.text.added_tokens import ControlledText

import agentkv as kv
from agentkv.formats import Family
from agentkv.output._thinking import HAND_OVER
from tests.rows import in_turn, one_in

from ...runtime.chat_styles import THINKING

pytestmark = pytest.mark.anyio

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<think>' if opens }}{% endif %}"
)
ASKED = [{"role": "user", "content": "Who are you?"}]
NEVER = "</think>"
ENDLESS = {2: -100.0}  # nano's end
LIKELIEST = kv.Sampling(logit_bias=ENDLESS)
DRAWN = kv.Sampling(temperature=0.9, seed=7, logit_bias=ENDLESS)


def nano_with(template: str, path: Path) -> Path:
    """nano with another chat template."""
    shutil.copytree(kv.models.nano(), path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_with(CHAT, tmp_path_factory.mktemp("nano") / "model")


@asynccontextmanager
async def asked(model: Path, closed: str = NEVER, **options: Any) -> AsyncIterator[kv.Branch]:
    """A branch where the assistant is about to think."""
    family = Family("thinker", thinking=("<think>", closed))
    async with kv.Context.open(model, 8192, threads=1, call_format=family, **options) as ctx:
        yield await ctx.branch(ASKED, template={"opens": True})


async def fork(branch: kv.Branch) -> kv.Branch:
    """One that draws as all others that it makes do."""
    [child] = await branch.fork(1)
    await child.draw_as(5)
    return child


def closing(text: str, branch: kv.Branch, closed: str) -> list[int]:
    """The tokens that close a thought of this text."""
    begun = next((size for size in range(len(closed) - 1, 0, -1) if text.endswith(closed[:size])), 0)
    rest = closed[begun:] if begun else (HAND_OVER if text else "\n") + closed
    ids: list[int] = branch._handle.core.compiler.tokenizer.encode_next(ControlledText(rest))
    return ids


async def expected(branch: kv.Branch, free: kv.Generation, budget: int, closed: str, **how: Any) -> list[int]:
    """What comes with a budget."""
    spelled = [branch._handle.core.chat.detokenizer.bytes_of(token) for token in free.tokens]
    for count in range(len(spelled) + 1):
        thought = b"".join(spelled[:count]).decode()
        if closed in thought or count == len(spelled):
            return free.tokens  # it ended in its budget, or as a whole
        if count == budget:
            most, made = how["max_tokens"], [*free.tokens[:count], *closing(thought, branch, closed)]
            if len(made) >= most:
                return made[:most]
            other = await fork(branch)
            await other._handle.run(_fed(other, made))
            rest = await other.generate(**{**how, "max_tokens": most - len(made), "thinking": 0})
            return [*made, *rest.tokens]
    raise AssertionError


def _fed(branch: kv.Branch, tokens: list[int]) -> Any:
    from agentkv._engine.commands import Job, check_finished

    return Job(lambda engine: engine.extend(branch.id, tokens), check_finished)


async def closers(model: Path, sampling: kv.Sampling) -> dict[str, str]:
    """What may close a thought of the model's: a text that never comes, and some that it writes."""
    async with asked(model) as branch:
        free = await (await fork(branch)).generate(max_tokens=48, sampling=sampling)
        spelled = [branch._handle.core.chat.detokenizer.bytes_of(token).decode() for token in free.tokens]
    text = "".join(spelled)
    starts = [len("".join(spelled[:count])) for count in range(len(spelled))]
    spans = {
        "a token": (starts[9], starts[10]),
        "some tokens": (starts[7], starts[10]),
        "from within a token to within another": (starts[11] - 1, starts[14] - 1),
        "the first": (0, starts[2]),
    }
    return {"never": NEVER} | {name: text[begin:end] for name, (begin, end) in spans.items()}


DRAFTS = kv.spec.Suffix(adaptive=False)


@pytest.mark.parametrize(
    ("sampling", "speculative"), one_in(2, [(DRAWN, DRAFTS), (DRAWN, None), (LIKELIEST, None), (LIKELIEST, DRAFTS)])
)
@pytest.mark.parametrize(
    "by", ["never", "a token", "some tokens", "from within a token to within another", "the first"]
)
async def test_budgets(model: Path, by: str, sampling: kv.Sampling, speculative: Any) -> None:
    how: dict[str, Any] = {"max_tokens": 48, "sampling": sampling, "speculative": speculative}
    closed = (await closers(model, sampling))[by]
    async with asked(model, closed) as branch:
        free = await (await fork(branch)).generate(**how)
        assert (await (await fork(branch)).generate(thinking=True, **how)) == free
        budgets = range(24)
        forks = [await fork(branch) for _ in budgets]
        whole = await kv.gather(*(each.generate(thinking=n, **how) for each, n in zip(forks, budgets, strict=True)))
        cut_off = 0
        for n, generation in zip(budgets, whole, strict=True):
            tokens = await expected(branch, free, n, closed, **how)
            assert generation.tokens == tokens, n
            cut_off += tokens != free.tokens
            if tokens == free.tokens:
                assert generation == free, "to the bit"
            async with (await fork(branch)).stream(thinking=n, **how) as stream:
                streamed = [token async for token in stream]
            assert [token.id for token in streamed if token.id >= 0] == tokens
            assert "".join(token.text for token in streamed) == generation.text == stream.generation.text
            assert stream.generation.logprobs == generation.logprobs
        assert cut_off == len(budgets) if by == "never" else 0 < cut_off < len(budgets)


@pytest.mark.parametrize("by", ["never", "some tokens"])
@pytest.mark.parametrize("keep", ["read", "made"])
async def test_wherever_it_is_left_it_goes_on(model: Path, by: str, keep: Any) -> None:
    how: dict[str, Any] = {"thinking": 8, "sampling": DRAWN}
    async with asked(model, (await closers(model, DRAWN))[by]) as branch:
        whole = await (await fork(branch)).generate(max_tokens=48, **how)
        for count in range(1, len(whole.tokens)):
            child = await fork(branch)
            async with child.stream(max_tokens=48, keep=keep, buffer=1, **how) as stream:
                for _ in range(count):
                    await anext(stream)
            made = child.tokens[len(branch) :]
            assert made == whole.tokens[: len(made)]
            assert len(made) == count or (keep == "made" and len(made) > count)
            if len(made) < len(whole.tokens):
                await child.generate(max_tokens=48 - len(made), **how)
            assert child.tokens[len(branch) :] == whole.tokens, count


async def test_it_goes_on_where_a_length_or_a_rollback_cut_it(model: Path) -> None:
    how: dict[str, Any] = {"thinking": 6, "sampling": LIKELIEST}
    async with asked(model) as branch:
        whole = await (await fork(branch)).generate(max_tokens=48, **how)
        for count in range(1, len(whole.tokens)):
            child = await fork(branch)
            first = await child.generate(max_tokens=count, **how)
            assert (first.finish_reason, first.tokens) == ("length", whole.tokens[:count])
            [other] = await child.fork(1)
            await child.generate(max_tokens=48 - count, **how)
            assert child.tokens[len(branch) :] == whole.tokens
            await child.rollback(len(branch) + count)
            for each in (child, other):
                await each.generate(max_tokens=48 - count, **how)
                assert each.tokens[len(branch) :] == whole.tokens


OUTPUTS = [kv.Regex("[a-z]{3}"), list[int], kv.Grammar('start: "yes" | "no"'), int]


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize(("output", "thinking"), in_turn(OUTPUTS, [False, 0, 1, 9]))
async def test_a_typed_output_comes_behind_the_thought(model: Path, opens: bool, output: Any, thinking: Any) -> None:
    async with asked(model) as branch:
        branch = await branch.context.branch(ASKED, template={"opens": opens})
        generation = await branch.generate(output=output, thinking=thinking, max_tokens=100)
        thought, _, answer = generation.text.partition("</think>")
        assert generation.output == (json.loads(answer) if output in (int, list[int]) else answer)
        assert ("<think>" in thought) != opens
        assert (HAND_OVER in thought) == (thinking > 0)
        begun = len(branch.tokens) - generation.usage.completion_tokens
        for count in range(1, generation.usage.completion_tokens):
            await branch.rollback(begun + count)
            again = await branch.generate(output=output, thinking=thinking, max_tokens=100)
            assert again.output == generation.output, "an output that was cut goes on"


async def test_a_stop_string_and_max_tokens_count_the_thought(model: Path) -> None:
    async with asked(model) as branch:
        how: dict[str, Any] = {"thinking": 3, "sampling": LIKELIEST}
        stopped = await (await fork(branch)).generate(stop="enough", max_tokens=100, **how)
        assert (stopped.finish_reason, stopped.text[-8:]) == ("stop", "thought ")
        for most in range(1, 12):
            cut = await (await fork(branch)).generate(max_tokens=most, **how)
            assert (cut.finish_reason, len(cut.tokens)) == ("length", most)


async def test_an_own_draft_changes_nothing(model: Path) -> None:
    class Wild:
        """Guesses what comes without a budget, and nonsense beside it."""

        def __init__(self, guess: list[int]) -> None:
            self.guess, self.rng = guess, random.Random(3)

        def propose(self, branch: int, tokens: Any, limit: int) -> kv.spec.Draft:
            made = len(tokens) - start
            return kv.spec.Draft.chain((self.guess[made:] or [self.rng.randrange(300)])[:limit])

    async with asked(model) as branch:
        start = len(branch)
        how: dict[str, Any] = {"max_tokens": 40, "sampling": LIKELIEST}
        free = await (await fork(branch)).generate(**how)
        for n in (0, 2, 5):
            plain = await (await fork(branch)).generate(thinking=n, **how)
            for guess in (free.tokens, plain.tokens, plain.tokens[3:]):
                drafted = await (await fork(branch)).generate(thinking=n, speculative=Wild(guess), **how)
                assert (drafted.tokens, drafted.logprobs) == (plain.tokens, plain.logprobs)


@pytest.mark.parametrize("thinking", [True, False, 0, 3])
async def test_a_model_that_does_not_reason_does_as_it_does(thinking: Any) -> None:
    async with kv.Context.open(kv.models.nano(), 1024, threads=1) as ctx:
        one, other = await (await ctx.branch(ASKED)).fork(2)
        assert await one.generate(thinking=thinking) == await other.generate()


@pytest.mark.parametrize("thinking", [False, 0, 3])
async def test_a_text_that_is_no_chat_gets_no_thought(model: Path, thinking: Any) -> None:
    async with asked(model) as branch:
        one, other = await (await branch.context.branch("The quick")).fork(2)
        assert (await one.generate(thinking=thinking)).tokens == (await other.generate()).tokens


@pytest.mark.parametrize("said", ["<think>\nhm\n</think>\n\nYes.", "<think>\n\n</think>\n\n", "It is"])
async def test_a_message_that_is_past_its_thought_goes_on(model: Path, said: str) -> None:
    async with asked(model) as branch:
        branch = await branch.context.branch(ASKED, template={"opens": False})
        await branch.extend(said)
        one, other = await branch.fork(2)
        assert (await one.generate(thinking=False)).text == (await other.generate()).text


@pytest.mark.parametrize("thinking", ["no", 1.5, -1, [3]])
async def test_what_is_no_budget_is_refused(model: Path, thinking: Any) -> None:
    async with asked(model) as branch:
        with pytest.raises(kv.InvalidInput, match="thinking is"):
            await branch.generate(thinking=thinking)
        with pytest.raises(kv.InvalidInput, match="thinking is"):
            branch.stream(thinking=thinking)
        with pytest.raises(kv.InvalidInput, match="thinking is"):
            kv.Agent(thinking=thinking)


async def test_a_saved_message_goes_on_in_its_thought(model: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"thinking": 6, "sampling": LIKELIEST}
    async with asked(model) as branch:
        whole = await (await fork(branch)).generate(max_tokens=48, **how)
        child = await fork(branch)
        await child.generate(max_tokens=4, **how)
        await child.save(tmp_path / "branch")
    async with asked(model) as branch:
        loaded = await branch.context.load(tmp_path / "branch")
        await loaded.generate(max_tokens=44, **how)
        assert loaded.tokens[len(branch) :] == whole.tokens


THOUGHT = " ".join(f"Hm {i}," for i in range(100)) + " 4!"


@pytest.mark.parametrize(
    ("budget", "text", "reasoning"),
    [
        (None, "It is 4.", THOUGHT),
        (False, "It is 4.", None),
        (2, "It is 4.", "H" + HAND_OVER),
    ],
)
async def test_a_scripted_model_that_thinks_without_end(
    tmp_path: Path, budget: Any, text: str, reasoning: str | None
) -> None:
    said = f"<think>\n{THOUGHT}\n</think>\n\nIt is 4."
    async with kv.testing.replies([said], nano_with(THINKING, tmp_path / "model"), capacity=4096) as ctx:
        agent = kv.Agent("You are Nano.", thinking=budget)
        run = await agent.run(await agent.trunk(ctx), "What is 2 + 2?")
        assert run.output == text
        thought = run.messages[-1].reasoning
        assert thought == (reasoning.strip() if reasoning else None)
