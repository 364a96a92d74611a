"""Several tasks talk on one branch and cut each other short: what the branch says of itself is what its tokens are."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from ..conftest import WithTemplate
from .test_conversations import TEMPLATE

pytestmark = pytest.mark.anyio


class Shared:
    """Several tasks that extend, answer, take back and cut the same branch at once."""

    def __init__(self, branch: kv.Branch, seed: int) -> None:
        self.branch = branch
        self.rng = random.Random(seed)
        self.given = {"Hello."}
        self.marks = [branch.mark()]  # the assistant's turn is open at each
        self.left = 60
        self.outcomes: dict[str, int] = {}

    async def work(self) -> None:
        """Takes verbs until none is left; one that meets another task's is refused."""
        while self.left > 0:
            self.left -= 1
            with anyio.CancelScope() as scope:
                if self.rng.random() < 0.5:
                    scope.deadline = anyio.current_time() + self.rng.random() ** 3 * 0.02
                outcome = "done"
                try:
                    await self._verb(self.rng.random())
                except (kv.BranchBusy, kv.ContextFull, kv.InvalidRollback) as error:
                    outcome = type(error).__name__
                    await anyio.lowlevel.checkpoint()
            if scope.cancelled_caught:
                outcome = "cancelled"
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    async def _verb(self, which: float) -> None:
        branch = self.branch
        if which < 0.45:
            content = f"{len(self.given)} words"
            self.given.add(content)
            await branch.extend([{"role": self.rng.choice(["user", "tool"]), "content": content}])
            self.marks.append(branch.mark())
        elif which < 0.75:
            await branch.generate(max_tokens=6, sampling=kv.Sampling(temperature=1.0, seed=1))
        elif which < 0.85:
            mark = branch.mark()
            await branch.extend([{"role": "user", "content": "Never mind."}])
            await branch.rollback(mark)
        elif which < 0.95:
            await branch.rollback(self.rng.choice(self.marks))
        else:
            async with await branch.fork() as kid:
                check_itself(kid, self.given)


def check_itself(branch: kv.Branch, given: set[str]) -> None:
    """A branch's text is that of its messages, as far as it holds them whole."""
    decode, ends = branch.context.tokenizer.decode, branch.context.tokenizer.eos_ids
    tokens, text = branch.tokens, ""
    messages = branch.messages
    for message in messages:
        assert message.role in ("system", "assistant") or message.content in {*given, "Never mind."}
        held = decode(tokens[message.start : message.end], skip_special=False)
        if message.role == "assistant":
            text += f"<|im_start|>assistant\n{held}<|im_end|>\n"
        else:
            assert message.content in held
            text += f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n"
    while tokens and tokens[-1] in ends:
        tokens.pop()
    held = decode(tokens, skip_special=False)
    assert text.removesuffix("<|im_end|>\n").startswith(held) or held.startswith(text.removesuffix("<|im_end|>\n"))


async def talk(folder: Path, seeds: range) -> dict[str, int]:
    """So many rounds of tasks on one branch; returns how their verbs ended."""
    counts: dict[str, int] = {}
    async with kv.Context.open(folder, capacity=4096, kv_dtype="fp32", threads=1) as ctx:
        for seed in seeds:
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
            async with await ctx.branch(messages) as branch:
                shared = Shared(branch, seed)
                with anyio.fail_after(PATIENCE):  # a task that hangs; a busy machine is slow
                    async with anyio.create_task_group() as group:
                        for _ in range(3):
                            group.start_soon(shared.work)
                check_itself(branch, shared.given)
                await branch.extend([{"role": "user", "content": "The end."}])
                check_itself(branch, {*shared.given, "The end."})
                assert branch.messages[-1].content == "The end."
                async with await ctx.branch(branch.tokens) as replay:
                    assert (await replay.logits()).tobytes() == (await branch.logits()).tobytes()
            for outcome, count in shared.outcomes.items():
                counts[outcome] = counts.get(outcome, 0) + count
    return counts


async def test_tasks_that_talk_on_one_branch(with_template: WithTemplate) -> None:
    folder = with_template(TEMPLATE)
    counts = Counter(await talk(folder, range(5)))
    for seed in itertools.count(5):  # how many of each, the machine's speed decides
        if min(counts[outcome] for outcome in ("done", "cancelled", "BranchBusy")) > 10:
            break
        counts += Counter(await talk(folder, range(seed, seed + 1)))


@pytest.mark.soak
async def test_many_tasks_that_talk_on_one_branch(with_template: WithTemplate, soak_count: int) -> None:
    print(await talk(with_template(TEMPLATE), range(1000, 1000 + soak_count // 50)))
