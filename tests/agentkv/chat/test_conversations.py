"""Random verbs with messages, many cancelled: a branch's messages and tokens are what an oracle says they are.

The oracle knows one simple template by heart: which messages there are, what was generated, and the text of it all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from agentkv_runtime.text.added_tokens import Control, ControlledText

import agentkv as kv

from ..conftest import WithTemplate
from ..context.test_shared_branches import check_against_replay, check_nothing_is_left

pytestmark = pytest.mark.anyio

# What an assistant thought stands only until the user goes on.
TEMPLATE = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in content %}
        {%- set content = content.split('</think>')[-1] %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
THOUGHT = "<think>well</think>"
SEEDS = 6
VERBS = 60


@dataclass(frozen=True)
class Said:
    """A message: a given one's content; of a generated one, its text and its tokens."""

    role: str
    content: str
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Known:
    """What the oracle knows of a branch: its messages, what was generated since, and what ended that."""

    said: tuple[Said, ...] = ()
    opened: bool = False
    reply: tuple[int, ...] = ()


class _Text:
    """Control tokens and text, which may spell some: a model writes whatever it wants."""

    def __init__(self, tokenizer: kv.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = ControlledText("", [])

    def write(self, control: str, text: str) -> None:
        """Adds a control token, or none, and text behind it."""
        before, controls = self._text.text, list(self._text.controls or ())
        if control:
            [i] = self._tokenizer.encode(control)
            controls.append(Control(len(before), len(before) + len(control), i))
        self._text = ControlledText(before + control + text, controls)

    def tokens(self) -> list[int]:
        """The tokens of it all."""
        return self._tokenizer._tokenizer.encode_rendered(self._text)


class Oracle:
    """Says what a branch must be."""

    def __init__(self, tokenizer: kv.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def extended(self, known: Known, messages: list[dict[str, str]]) -> Known:
        """After these messages."""
        said = [*self.said(known), *(Said(message["role"], message["content"]) for message in messages)]
        last_user = max((i for i, one in enumerate(said) if one.role == "user"), default=-1)
        for i, one in enumerate(said[: max(last_user, 0)]):
            if one.tokens is not None and "</think>" in one.content:
                said[i] = replace(one, content=one.content.strip(), tokens=None)  # now the template writes it
        return Known(tuple(said), messages[-1]["role"] in ("user", "tool"))

    def said(self, known: Known) -> list[Said]:
        """The messages, with the reply that is open."""
        if not known.reply:
            return list(known.said)
        tokens = list(known.reply)
        while tokens and tokens[-1] in self._tokenizer.eos_ids:
            tokens.pop()
        return [*known.said, Said("assistant", self._tokenizer.decode(tokens, skip_special=False), tuple(tokens))]

    def tokens(self, known: Known) -> list[int]:
        """Every token of the branch."""
        tokens: list[int] = []
        text = _Text(self._tokenizer)
        last_user = max((i for i, one in enumerate(known.said) if one.role == "user"), default=-1)
        for i, one in enumerate(known.said):
            text.write("<|im_start|>", f"{one.role}\n")
            if one.tokens is None:
                hidden = one.role == "assistant" and i < last_user
                text.write("", one.content.split("</think>")[-1] if hidden else one.content)
            else:
                tokens += [*text.tokens(), *one.tokens]
                text = _Text(self._tokenizer)
            text.write("<|im_end|>", "\n")
        if known.opened:
            text.write("<|im_start|>", "assistant\n")
        return [*tokens, *text.tokens(), *known.reply]

    def check(self, branch: kv.Branch, known: Known) -> None:
        """Is the branch that?"""
        assert branch.tokens == self.tokens(known)
        messages, said = branch.messages, self.said(known)
        assert [message.role for message in messages] == [one.role for one in said]
        end = 0
        for message, one in zip(messages, said, strict=True):
            assert end <= message.end <= len(branch)
            end = message.end
            if one.tokens is not None:
                assert tuple(branch.tokens[message.start : message.end]) == one.tokens
            if one.role != "assistant":
                assert message.content == one.content


class Session:
    """One task that takes random verbs on random branches, many of them cancelled."""

    def __init__(self, ctx: kv.Context, seed: int) -> None:
        self.ctx = ctx
        self.rng = random.Random(seed)
        self.oracle = Oracle(ctx.tokenizer)
        self.branches: list[tuple[kv.Branch, Known, list[tuple[kv.Mark, Known]]]] = []
        self.counts: dict[str, int] = {}

    async def run(self, verbs: int) -> None:
        """Takes so many verbs, and checks every branch after each."""
        messages = [{"role": "system", "content": "Be brief."}]
        trunk = await self.ctx.branch(messages)
        self.branches = [(trunk, self.oracle.extended(Known(), messages), [])]
        for _ in range(verbs):
            verb = self.rng.choice(VERB_NAMES)
            index = self.rng.randrange(len(self.branches))
            with anyio.CancelScope() as scope:
                # A cancelled rollback or adopt may have been done: which, nobody is told.
                if verb not in ("rollback", "adopt") and self.rng.random() < 0.3:
                    scope.deadline = anyio.current_time() + self.rng.random() ** 3 * 0.02
                try:
                    await getattr(self, verb)(index)
                except kv.ContextFull:
                    await self.branches[index][0].rollback(0)
                    self.branches[index] = (self.branches[index][0], Known(), [])
            self.counts[verb] = self.counts.get(verb, 0) + 1
            self.counts["cancelled"] = self.counts.get("cancelled", 0) + scope.cancelled_caught
            for i, (branch, known, marks) in enumerate(self.branches):
                if i == index and scope.cancelled_caught and verb == "generate" and known.opened:
                    known = replace(
                        known, reply=tuple(branch.tokens[len(self.oracle.tokens(known)) - len(known.reply) :])
                    )
                    self.branches[i] = (branch, known, marks)
                self.oracle.check(branch, known)

    def _learn(self, index: int, known: Known) -> None:
        branch, _, marks = self.branches[index]
        self.branches[index] = (branch, known, marks)

    def _message(self, role: str) -> dict[str, str]:
        words = ["one", "two\n\n", "  three", "four ", "\u00e9", "a < b"]
        return {"role": role, "content": f"{self.rng.randrange(999)} {self.rng.choice(words)}"}

    async def extend(self, index: int) -> None:
        branch, known, _ = self.branches[index]
        roles = [self.rng.choice(["user", "user", "tool", "assistant"]) for _ in range(self.rng.randint(1, 3))]
        messages = [self._message(role) for role in roles]
        length = len(branch)
        done = await branch.extend(messages)
        assert done.kept + done.rewritten == length
        assert done.kept + done.added == len(branch)
        self._learn(index, self.oracle.extended(known, messages))

    async def think(self, index: int) -> None:
        branch, known, _ = self.branches[index]
        if known.opened and not known.reply:
            tokens = self.ctx.tokenizer.encode(THOUGHT)
            await branch.extend(tokens)
            self._learn(index, replace(known, reply=tuple(tokens)))

    async def generate(self, index: int) -> None:
        branch, known, _ = self.branches[index]
        if known.opened:
            sampling = kv.Sampling(temperature=1.0, seed=self.rng.randrange(99))
            made = await branch.generate(max_tokens=self.rng.randint(1, 12), sampling=sampling)
            self._learn(index, replace(known, reply=(*known.reply, *made.tokens)))

    async def fork(self, index: int) -> None:
        branch, known, _ = self.branches[index]
        self.branches += [(child, known, []) for child in await branch.fork(self.rng.randint(1, 2))]
        while len(self.branches) > 6:
            self.branches.pop(0)[0].close()

    async def adopt(self, index: int) -> None:
        other, known, _ = self.rng.choice(self.branches)
        await self.branches[index][0].adopt(other)
        self.branches[index] = (self.branches[index][0], known, [])

    async def mark(self, index: int) -> None:
        branch, known, marks = self.branches[index]
        marks.append((branch.mark(), known))

    async def rollback(self, index: int) -> None:
        branch, _, marks = self.branches[index]
        while marks:
            mark, known = marks.pop(self.rng.randrange(len(marks)))
            try:
                await branch.rollback(mark)
            except kv.InvalidRollback:
                continue  # the template rewrote what was before it
            self._learn(index, known)
            return


VERB_NAMES = [name for name in vars(Session) if not name.startswith("_") and name != "run"] + ["extend", "generate"]


async def run_sessions(folder: Path, seeds: range) -> dict[str, int]:
    """So many sessions; returns how often each verb was taken."""
    counts: dict[str, int] = {}
    async with kv.Context.open(folder, capacity=4096, kv_dtype="fp32", threads=1) as fresh:
        for seed in seeds:
            async with kv.Context.open(folder, capacity=4096, kv_dtype="fp32", threads=1) as ctx:
                session = Session(ctx, seed)
                await session.run(VERBS)
                for branch, _, _ in session.branches:
                    await check_against_replay(branch, fresh)
                del branch
                session.branches.clear()
                await check_nothing_is_left(ctx)
            for key, count in session.counts.items():
                counts[key] = counts.get(key, 0) + count
    return counts


async def test_random_verbs_leave_what_the_oracle_says(with_template: WithTemplate) -> None:
    counts = await run_sessions(with_template(TEMPLATE), range(SEEDS))
    assert min(counts.values()) > SEEDS, counts


@pytest.mark.soak
async def test_many_random_verbs(with_template: WithTemplate) -> None:
    print(await run_sessions(with_template(TEMPLATE), range(1000, 1150)))
