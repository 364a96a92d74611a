"""Only AgentKVError: whatever users pass, a call succeeds or raises one, and leaves everything as it was."""

from __future__ import annotations

import inspect
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from ..bad_input import message, value
from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

Target = tuple[str, Callable[..., Any], list[str]]
# Values that a parameter can take and that would run for long, or end the test.
SMALL = {"max_tokens": 3, "n": 2}
# What is not the users' to call, and what ends the branch or Context under test.
SKIPPED = {"close", "open", "keep"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def members(thing: object) -> list[tuple[str, Callable[..., Any]]]:
    names = [n for n, v in vars(type(thing)).items() if not n.startswith("_") and inspect.isroutine(v)]
    return [(n, getattr(thing, n)) for n in names if n not in SKIPPED]


def targets(ctx: kv.Context, branch: kv.Branch) -> list[Target]:
    """Every public callable, with the names of its parameters."""
    found: list[Target] = []
    for thing in (ctx, branch, ctx.tokenizer):
        found += [(f"{type(thing).__name__}.{n}", f, parameters(f)) for n, f in members(thing)]
    for name in kv.spec.__all__:
        strategy = getattr(kv.spec, name)
        if name not in ("Strategy", "Draft"):
            found.append((f"spec.{name}", strategy, ["0", "1"] if name == "Mixed" else parameters(strategy)))
    found.append(("Sampling", kv.Sampling, parameters(kv.Sampling)))
    found.append(("models.nano", kv.models.nano, ["draft"]))
    found.append(("gather", kv.gather, ["0", "1"]))
    found.append(("Context.keep", ctx.keep, ["0"]))
    found.append(("Context.open", kv.Context.open, parameters(kv.Context.open)))
    return found


def argument(rng: random.Random, name: str, others: list[Any]) -> Any:
    """A value for a parameter: often one that comes near to what it takes."""
    if name in ("messages", "prompt") and rng.random() < 0.6:
        return [message(rng) for _ in range(rng.randint(1, 3))]
    if name == "tools" and rng.random() < 0.5:
        return [value(rng)]
    if name in ("sampling", "speculative") and rng.random() < 0.3:
        return rng.choice([kv.Sampling(temperature=1), kv.spec.PromptLookup(), kv.spec.Eagle(), kv.Sampling])
    return rng.choice(others) if rng.random() < 0.1 else value(rng)


SAVED = tempfile.TemporaryDirectory()
REQUIRED = {"prompt": "x", "to": 0, "choices": ["a"], "text": "x", "ids": [1], "p0": 0, "p1": 1}


async def call(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Calls, awaits, enters and reads, as far as it goes."""
    named = {name: item for name, item in arguments.items() if not name.isdigit()}
    made = function(*(item for name, item in arguments.items() if name.isdigit()), **named)
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, kv.TokenStream):
        async with made as tokens:
            async for _ in tokens:
                pass
    elif hasattr(made, "__aenter__") and not isinstance(made, kv.Branch):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(made)


def draw(rng: random.Random, target: Target, others: list[Any], folder: Path) -> dict[str, Any]:
    name, function, names = target
    if name in ("gather", "Context.keep"):
        return {str(i): argument(rng, "", others) for i in range(rng.randint(1, 2))}
    chosen = rng.sample(names, rng.randint(1, min(2, len(names)))) if names else []
    chosen = [
        n for n in chosen if n not in ("variables", "path", "folder", "progress")
    ]  # what is written goes to SAVED
    arguments = {n: argument(rng, n, others) for n in chosen}
    for required, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty and required in names and required not in arguments:
            fallback = {
                "messages": [{"role": "user", "content": "x"}],
                "other": others[0],
                "model": folder,
                "path": Path(SAVED.name) / "saved",
                "url": "http://127.0.0.1:1/v1",  # where nobody is
                "branches": {"one": others[0]},
            }
            if required != "variables":
                arguments[required] = {**fallback, **REQUIRED}.get(required, "x")
    if name in ("Branch.generate", "Branch.stream"):
        arguments.setdefault("max_tokens", 3)
        if isinstance(arguments["max_tokens"], int) and arguments["max_tokens"] > 3:
            arguments["max_tokens"] = 3
    if name == "Branch.fork" and isinstance(arguments.get("n"), int) and arguments["n"] > 3:
        arguments["n"] = 300
    if name == "Context.open":
        arguments.setdefault("capacity", 64)
        if isinstance(arguments["capacity"], int) and arguments["capacity"] > 64:
            arguments["capacity"] = 64
        arguments.setdefault("kv_dtype", "fp32")
        if arguments.get("threads") is not None and isinstance(arguments["threads"], int) and arguments["threads"] > 1:
            arguments["threads"] = 10**6
    return arguments


async def check(open_context: OpenContext, folder: Path, count: int, seed: int) -> Counter[str]:
    """Makes so many calls; returns how many went which way."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    async with open_context(capacity=512) as ctx, open_context(capacity=64) as elsewhere:
        foreign, closed = await elsewhere.branch("The"), await ctx.branch("The")
        await closed.close()
        reference = (await (await ctx.branch("The quick")).generate(max_tokens=4)).tokens
        rng = random.Random(seed)
        for turn in range(count):
            branch = await ctx.branch("The quick")
            before = (branch.tokens, branch.closed)
            others = [branch, foreign, closed, branch.mark(), foreign.mark(), ctx, kv.Branch]
            target = rng.choice(targets(ctx, branch))
            arguments = draw(rng, target, others, folder)
            try:
                with anyio.fail_after(PATIENCE):
                    await call(target[1], arguments)
                outcomes["succeeded"] += 1
            except kv.AgentKVError as error:
                outcomes[type(error).__name__] += 1
                str(error)
                if not branch.closed:
                    assert (branch.tokens, branch.closed) == before, (target[0], turn)
            except Exception as error:
                failures.append(f"{turn} {target[0]}({', '.join(arguments)}): {type(error).__name__}: {error}"[:300])
            del branch, others, arguments, target
            await ctx.keep()
            if turn % 50 == 0:
                assert (await (await ctx.branch("The quick")).generate(max_tokens=4)).tokens == reference
        assert (await (await ctx.branch("The quick")).generate(max_tokens=4)).tokens == reference
    assert not failures, "\n".join([f"{len(failures)} of {count}", *failures[:40]])
    return outcomes


@pytest.mark.filterwarnings("ignore:coroutine")
async def test_only_errors_of_ours(open_context: OpenContext, folder: Path) -> None:
    outcomes = await check(open_context, folder, 300, 0)
    assert outcomes["InvalidInput"] > 50
    assert outcomes["succeeded"] > 10


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:coroutine")
async def test_only_errors_of_ours_many_times(open_context: OpenContext, folder: Path, soak_count: int) -> None:
    outcomes = await check(open_context, folder, soak_count, 1)
    print(dict(outcomes))
