"""Exact-match accuracy on held-out questions: `python -m examples.nano.evaluate nano-hf`.

The model plays whole rounds: its calls are run, it reads their results, and it answers. A round counts
as called right when every turn's calls equal the expected ones, and as answered right when its last
words equal the expected sentence.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from .data import PLAIN, Conversation, Mix, Round, conversation
from .engines import Chat, Engine, open_engine
from .tools import Call, Result, parse_calls, response

MAX_TURNS = 6
GROUPS: dict[str, tuple[Mix, dict[str, int]]] = {
    "0 calls": (PLAIN, {"calls": 0, "rounds": 1}),
    "1 call": (PLAIN, {"calls": 1, "rounds": 1}),
    "2 calls": (PLAIN, {"calls": 2, "rounds": 1}),
    "3 calls": (PLAIN, {"calls": 3, "rounds": 1}),
    "renamed tools": (replace(PLAIN, rename=1), {"rounds": 1}),
    "freely described tools": (replace(PLAIN, describe=1), {"rounds": 1}),
    "failing tools": (replace(PLAIN, errors=1), {"calls": 1, "rounds": 1}),
    "calls to make again": (replace(PLAIN, retries=1), {"calls": 1, "rounds": 1}),
    "experts": (replace(PLAIN, expert=1), {"calls": 1, "rounds": 1}),
    "typed extraction": (replace(PLAIN, typed=1), {"calls": 0, "rounds": 1}),
    "typed results": (replace(PLAIN, typed=1), {"calls": 1, "rounds": 1}),
    "later rounds": (PLAIN, {"rounds": 3}),
    "long context": (PLAIN, {"rounds": 8}),
}
KINDS = {"experts": ("expert",), "typed results": ("typed call",)}  # where only such rounds count


@dataclass
class Trial:
    """One held-out question, and what the model made of it."""

    group: str
    talk: Conversation
    chat: Chat
    turns: list[list[Call]] = field(default_factory=list)
    answer: str | None = None

    @property
    def expected(self) -> Round:
        """The round that the model has to play."""
        return self.talk.rounds[-1]

    @property
    def called(self) -> bool:
        """Whether every call was right."""
        return self.turns == self.expected.turns

    @property
    def answered(self) -> bool:
        """Whether the last words were right."""
        return self.answer == self.expected.answer

    def hear(self, text: str) -> None:
        """Take the model's turn: run its calls, or keep its answer."""
        calls = parse_calls(text)
        if not calls or len(self.turns) == MAX_TURNS:
            self.answer = text
            return
        index = len(self.turns)
        self.turns.append(calls)
        results: list[Result | str]
        if index < len(self.expected.turns) and calls == self.expected.turns[index]:
            # The recorded results, because some of them are failures that the tools would not repeat.
            results = self.expected.results[index]
        else:
            results = [*map(self.talk.desk.execute, calls)]
        self.chat.messages.append({"role": "assistant", "content": text})
        self.chat.messages += [{"role": "tool", "content": response(result)} for result in results]


def trials(per_group: int, seed: int) -> list[Trial]:
    """Held-out questions of every kind."""
    made = []
    for group, (mix, options) in GROUPS.items():
        rng = random.Random(f"{seed}:{group}")
        while sum(trial.group == group for trial in made) < per_group:
            talk = conversation(rng, "eval", mix=mix, **options)
            if group in KINDS and talk.rounds[-1].kind not in KINDS[group]:
                continue
            heard = talk.messages()[: -len(talk.rounds[-1].messages()) + 1]
            made.append(Trial(group, talk, Chat(heard, talk.tools())))
    return made


async def play(engine: Engine, made: list[Trial]) -> None:
    """Let the model play every trial to its end."""
    while waiting := [trial for trial in made if trial.answer is None]:
        for trial, text in zip(waiting, await engine.complete([t.chat for t in waiting]), strict=True):
            trial.hear(text)


def report(made: list[Trial], console: Console, failures: int) -> None:
    """Print accuracy by group, and some of what went wrong."""
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in made:
        groups[trial.group].append(trial)
    groups["0 to 3 calls"] = [trial for trial in made if trial.group[0].isdigit()]
    table = Table("held-out questions", "n", "exact calls", "exact answers")
    for group, members in groups.items():
        calls = 100 * sum(trial.called for trial in members) / len(members)
        answers = 100 * sum(trial.answered for trial in members) / len(members)
        table.add_row(group, str(len(members)), f"{calls:.1f}%", f"{answers:.1f}%")
    console.print(table)
    for trial in [t for t in made if not (t.called and t.answered)][:failures]:
        console.rule(f"{trial.group}, {trial.expected.kind}")
        console.print(f"asked     {trial.expected.question}", markup=False)
        console.print(f"expected  {trial.expected.turns} {trial.expected.answer}", markup=False)
        console.print(f"got       {trial.turns} {trial.answer}", markup=False)


async def _run(name: str, folder: Path, int4: bool, kv_dtype: str, made: list[Trial]) -> None:
    async with open_engine(name, folder, int4, kv_dtype) as engine:
        await play(engine, made)


def main(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    engine: Annotated[str, typer.Option(help="transformers or agentkv.")] = "transformers",
    int4: Annotated[bool, typer.Option(help="Round all weights to int4 first (transformers only).")] = False,
    kv_dtype: Annotated[str, typer.Option(help="Of the cache (agentkv only).")] = "fp16",
    per_group: Annotated[int, typer.Option(help="Questions of each kind.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the questions.")] = 1,
    threads: Annotated[int, typer.Option(help="CPU threads of torch.")] = 1,
    failures: Annotated[int, typer.Option(help="How many failures to print.")] = 5,
) -> None:
    """Play held-out questions and print the accuracy of calls and answers."""
    torch.set_num_threads(threads)
    made = trials(per_group, seed)
    asyncio.run(_run(engine, model, int4, kv_dtype, made))
    report(made, Console(), failures)


if __name__ == "__main__":
    typer.run(main)
