"""The agent loop that the examples share: ask, call tools, read results, answer.

Everything happens on one branch. The caller decides what to fork and what to forget.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nano.tools import SYSTEM, TOOLS, Call, Result, execute, parse_calls

import agentkv as kv

RunTool = Callable[[Call], Awaitable[Result]]
MAX_ROUNDS = 3


async def run_tool(call: Call) -> Result:
    """Run one of nano's tools in-process."""
    return execute(call)


@dataclass
class Turn:
    """What one question led to."""

    question: str
    answer: str = ""
    calls: list[Call] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    logprob: float = 0.0  # mean log-probability of the answer's tokens


async def open_trunk(ctx: kv.Context, tool_names: list[str]) -> kv.Branch:
    """Prefill the system prompt with some of nano's tools: the history that every sub-agent shares."""
    tools = [TOOLS[name].definition() for name in tool_names]
    return await ctx.branch([{"role": "system", "content": SYSTEM}], tools=tools)


async def ask(branch: kv.Branch, question: str, tool: RunTool = run_tool, sampling: kv.Sampling | None = None) -> Turn:
    """Answer one question on a branch, running the calls of each round at the same time."""
    turn = Turn(question)
    await branch.extend([{"role": "user", "content": question}])
    for _ in range(MAX_ROUNDS):
        gen = await branch.generate(max_tokens=160, sampling=sampling)
        calls = parse_calls(gen.text) if gen.finish_reason == "eos" else []  # a truncated call must never run
        if not calls:
            turn.answer = gen.text.strip()
            turn.logprob = sum(gen.logprobs) / max(1, len(gen.logprobs))
            return turn
        results = await kv.gather(*(tool(call) for call in calls))
        turn.calls += calls
        turn.results += results
        await branch.extend([{"role": "tool", "content": json.dumps(result, ensure_ascii=False)} for result in results])
    return turn
