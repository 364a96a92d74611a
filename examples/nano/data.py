"""Conversations of a desk agent: requests of none to three calls, their results and their answers.

Questions vary in wording; what the assistant says is a function of the question and the results, so a
held-out conversation has exactly one right continuation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import chains, extraction, mishaps, pools, typed
from .arguments import Args
from .desk import Desk
from .pools import Pool, chance
from .skills import SKILLS, tell
from .smalltalk import NO_TOOL, Facts, small_talk
from .tools import TOOLS, Call, Result, response

Message = dict[str, str]
Step = tuple[str, Args]

_ASKING = ["what", "how", "where", "is", "do", "did", "am", "are", "when", "which"]


@dataclass
class Round:
    """One question, the turns of calls it needs, what they return, and the answer."""

    question: str
    kind: str
    turns: list[list[Call]] = field(default_factory=list)
    results: list[list[Result | str]] = field(default_factory=list)
    answer: str = ""

    @property
    def calls(self) -> int:
        """How many calls the question needs."""
        return sum(len(turn) for turn in self.turns)

    def messages(self) -> list[Message]:
        """The round as chat messages."""
        messages = [{"role": "user", "content": self.question}]
        for calls, results in zip(self.turns, self.results, strict=True):
            messages.append({"role": "assistant", "content": "\n".join(call.text() for call in calls)})
            messages += [{"role": "tool", "content": response(result)} for result in results]
        return [*messages, {"role": "assistant", "content": self.answer}]


@dataclass(frozen=True)
class Mix:
    """How probable it is, of each, that a tool is renamed or described freely, a call fails or is to be made again,
    an answer has a type, a desk has an expert; and the fewest tools of a desk."""

    rename: float = 0
    describe: float = 0
    errors: float = 0
    retries: float = 0
    typed: float = 0
    expert: float = 0
    least: int = 3


PLAIN = Mix()
TAUGHT = Mix(rename=0.15, errors=0.06)  # what the shipped weights have learnt from
WIDER = Mix(rename=0.15, describe=0.5, errors=0.09, retries=0.06, typed=0.2, expert=0.35, least=1)


@dataclass
class Conversation:
    """A system prompt, the tools on the desk, and one or more rounds."""

    system: str
    desk: Desk
    rounds: list[Round]

    def messages(self) -> list[Message]:
        """The whole conversation as chat messages."""
        messages = [{"role": "system", "content": self.system}]
        for turn in self.rounds:
            messages += turn.messages()
        return messages

    def tools(self) -> list[dict[str, Any]]:
        """The tool definitions for the chat template."""
        return self.desk.definitions()


def polish(rng: random.Random, text: str) -> str:
    """Give a question its capital, its mark and now and then a greeting."""
    mark = "?" if text.split(" ")[0] in _ASKING else "."
    opening = rng.choice(("Please ", "Hi, ", "Hello, ", "Hey, ", "Now ")) if rng.random() < 0.15 else ""
    text = opening + text if opening else text[0].upper() + text[1:]
    return text + rng.choice((mark, mark, mark, mark, ""))


def listing(items: list[str]) -> str:
    """`A`, `A and B` or `A, B and C`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _fixed(steps: list[Step]) -> Callable[[list[Result]], list[Step]]:
    return lambda _: steps


def _one_tool_list(rng: random.Random, pool: Pool, desk: Desk, count: int) -> chains.Chain | None:
    tools = [name for name in desk.tools if SKILLS[name].lists]
    if not tools:
        return None
    name = rng.choice(tools)
    skill = SKILLS[name]
    assert skill.key is not None
    steps = [(name, skill.sample(rng, pool)) for _ in range(count)]
    values = [str(args[skill.key]) for _, args in steps]
    shown = [f'"{value}"' if skill.key == "word" else value for value in values]
    return chains.Chain(rng.choice(skill.lists).format(list=listing(shown)), (_fixed(steps),))


def _several_tools(rng: random.Random, pool: Pool, desk: Desk, count: int) -> chains.Chain:
    names = rng.sample(desk.tools, count)
    steps = [(name, SKILLS[name].sample(rng, pool)) for name in names]
    asks = [SKILLS[name].ask(rng, args) for name, args in steps]
    text = rng.choice((listing(asks), ", then ".join(asks), ". Also, ".join(asks), ", and ".join(asks)))
    return chains.Chain(text, (_fixed(steps),))


def _request(rng: random.Random, pool: Pool, desk: Desk, count: int) -> tuple[chains.Chain, str]:
    makers = [
        make for needed, make in (chains.TWO_CALLS, chains.THREE_CALLS)[count - 2] if set(needed) <= set(desk.tools)
    ]
    if count >= 2 and makers and rng.random() < 0.5:
        return rng.choice(makers)(rng, pool), "chain"
    listed = _one_tool_list(rng, pool, desk, count) if count >= 2 and rng.random() < 0.45 else None
    return listed or _several_tools(rng, pool, desk, count), "calls"


def _play(rng: random.Random, pool: Pool, desk: Desk, chain: chains.Chain, kind: str, mix: Mix) -> Round:
    """Run a chain's turns, letting a call fail now and then; a chain that lost a result ends there."""
    turn = Round(polish(rng, chain.text), kind)
    seen: list[Result] = []
    told: list[str] = []
    for make in chain.turns:
        steps = make(seen)
        results: list[Result | str] = [TOOLS[name].run(**args) for name, args in steps]
        failed = chance(rng, mix.errors)
        if failed:
            results[rng.randrange(len(results))] = mishaps.failure(rng, pool)
            turn.kind = "error"
        again = rng.randrange(len(steps)) if not failed and chance(rng, mix.retries) else None
        turn.turns.append([Call(desk.shown(name), args) for name, args in steps])
        turn.results.append(results)
        final = [result for result in results if isinstance(result, dict)]
        if again is not None:
            steps[again], final[again] = _call_again(rng, pool, desk, steps[again], turn, again)
        told += [tell(name, args, r, desk.shown(name)) for (name, args), r in zip(steps, final, strict=True)]
        seen += final
        if any("error" in result for result in final):
            break
    turn.answer = " ".join(told)
    return turn


def _call_again(rng: random.Random, pool: Pool, desk: Desk, step: Step, turn: Round, index: int) -> tuple[Step, Result]:
    """Have a call of the last turn made again, now and then twice or in vain: the call and its result."""
    turn.kind = "retry"
    name, args = step
    for _ in range(2 if rng.random() < 0.2 else 1):
        turn.results[-1][index], args = mishaps.second_try(rng, pool, args)
        turn.turns.append([Call(desk.shown(name), args)])
        turn.results.append([TOOLS[name].run(**args)])
        index = 0
    if rng.random() < 0.15:
        turn.results[-1] = [mishaps.failure(rng, pool)]
    result = turn.results[-1][0]
    assert isinstance(result, dict)
    return (name, args), result


def _follow_up(rng: random.Random, pool: Pool, desk: Desk, last: Round) -> chains.Chain | None:
    """ "And in Oslo?" after a question about another city."""
    if last.calls != 1 or last.kind not in ("calls", "follow"):
        return None
    name = next(tool for tool in desk.tools if desk.shown(tool) == last.turns[0][0].name)
    skill = SKILLS[name]
    if skill.key is None:
        return None
    args = skill.sample(rng, pool)
    value = f'"{args["word"]}"' if skill.key == "word" else args[skill.key]
    asks = ("and in {v}", "and {v}", "what about {v}") if skill.key == "city" else ("and {v}", "what about {v}")
    return chains.Chain(rng.choice(asks).format(v=value), (_fixed([(name, args)]),))


def _unavailable(rng: random.Random, pool: Pool, desk: Desk) -> Round:
    skill = SKILLS[rng.choice(desk.absent)]
    return Round(polish(rng, skill.ask(rng, skill.sample(rng, pool))), "no tool", answer=NO_TOOL)


def _delegated(rng: random.Random, pool: Pool, desk: Desk) -> Round:
    """A question that is handed on as it was asked, and whose answer is passed on."""
    assert desk.expert is not None
    question, answer = desk.expert.question(rng, pool)
    asked = polish(rng, question)
    return Round(asked, "expert", [[Call(desk.expert.name, {"task": asked})]], [[answer]], answer)


def _one_call(rng: random.Random, pool: Pool, desk: Desk, past: list[Round], mix: Mix) -> Round:
    if desk.expert and rng.random() < 0.7:
        return _delegated(rng, pool, desk)
    follow = _follow_up(rng, pool, desk, past[-1]) if past and rng.random() < 0.4 else None
    if follow:
        return _play(rng, pool, desk, follow, "follow", mix)
    chain = _several_tools(rng, pool, desk, 1)
    ((name, args),) = chain.turns[0]([])
    turn = _play(rng, pool, desk, chain, "calls", mix)
    result = turn.results[0][0]
    if turn.kind == "calls" and isinstance(result, dict) and chance(rng, mix.typed):
        shaped = typed.reshape(rng, name, args, result, turn.question)
        if shaped:
            turn.question, turn.answer = shaped
            turn.kind = "typed call"
    elif turn.kind == "calls" and chance(rng, mix.expert):  # a tool that answers in words
        turn.results[0][0] = turn.answer
    return turn


def _no_call(rng: random.Random, pool: Pool, desk: Desk, facts: Facts, past: list[Round], mix: Mix) -> Round:
    if chance(rng, mix.typed):
        question, answer = typed.choice(rng, pool) if rng.random() < 0.25 else extraction.question(rng, pool)
        return Round(question, "typed", answer=answer)
    if rng.random() < 0.45:
        return _unavailable(rng, pool, desk)
    question, answer = small_talk(rng, pool, facts, desk.names, [r.answer for r in past])
    return Round(question, "talk", answer=answer)


def next_round(
    rng: random.Random, pool: Pool, desk: Desk, facts: Facts, past: list[Round], calls: int | None, mix: Mix
) -> Round:
    """One more round; `calls` fixes how many calls it needs."""
    count = calls if calls is not None else min(rng.choice((0, 0, 0, 1, 1, 2, 2, 3, 3)), len(desk.tools))
    if count == 0:
        return _no_call(rng, pool, desk, facts, past, mix)
    if count == 1:
        return _one_call(rng, pool, desk, past, mix)
    chain, kind = _request(rng, pool, desk, count)
    return _play(rng, pool, desk, chain, kind, mix)


def conversation(
    rng: random.Random, pool: Pool, calls: int | None = None, rounds: int | None = None, mix: Mix = TAUGHT
) -> Conversation:
    """A conversation whose values all come from `pool`; `calls` fixes what its last round needs."""
    if calls is None and chance(rng, mix.typed / 2):
        return _extraction(rng, pool, rounds or rng.randint(1, 4))
    needed = rng.choice(chains.TWO_CALLS + chains.THREE_CALLS)[0] if rng.random() < 0.35 else ()
    desk = Desk.sample(
        rng, pool, needed, 3 if calls else mix.least, rename=mix.rename, describe=mix.describe, expert=mix.expert
    )
    facts = Facts.sample(rng, pool)
    total = rounds if rounds is not None else rng.choices((1, 2, 3, rng.randint(4, 8)), (38, 25, 21, 16))[0]
    past: list[Round] = []
    for index in range(total):
        past.append(next_round(rng, pool, desk, facts, past, calls if index == total - 1 else None, mix))
    return Conversation(facts.system, desk, past)


def _extraction(rng: random.Random, pool: Pool, rounds: int) -> Conversation:
    """One schema in the system prompt, and texts to find its values in."""
    instructions, asked = extraction.series(rng, pool, rounds)
    system = instructions if rng.random() < 0.5 else f"{Facts.sample(rng, pool, notes=0).system}\n{instructions}"
    return Conversation(system, Desk(()), [Round(text, "typed", answer=answer) for text, answer in asked])


def lesson(rng: random.Random, pool: Pool = "train") -> Conversation:
    """An exercise in copying and looking up, for the first steps of training."""
    kind = rng.random()
    facts = Facts.sample(rng, pool, notes=rng.randint(2, 8) if kind < 0.4 else 0)
    makers: tuple[Callable[[random.Random, Pool], object], ...] = (pools.name, pools.word, pools.code, pools.number)
    done = []
    for _ in range(rng.randint(2, 5)):
        if facts.notes and rng.random() < 0.7:
            question, answer = facts.question(rng)
            done.append(Round(question, "lesson", answer=answer))
        else:
            items = " - ".join(str(rng.choice(makers)(rng, pool)) for _ in range(rng.randint(2, 8)))
            done.append(Round(f"Repeat: {items}", "lesson", answer=f"Here: {items}"))
    return Conversation(facts.system, Desk(()), done)
