"""The types of generations, as a type checker sees them: `make lint` runs mypy over this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import agentkv as kv

pytestmark = pytest.mark.anyio


class Person(BaseModel):
    name: str


@dataclass
class Point:
    x: Annotated[int, Field(ge=0, le=99)]


class Movie(TypedDict):
    title: str


class Color(Enum):
    RED = "red"


class Anything:
    """A constraint that allows everything."""

    done = False

    def __init__(self, vocab_size: int) -> None:
        self.size = vocab_size

    def mask(self) -> NDArray[np.bool_]:
        return np.ones(self.size, np.bool_)

    def advance(self, token: int) -> None: ...

    def rollback(self, n: int) -> None: ...

    def fork(self) -> Anything:
        return self


async def types_of_generations(branch: kv.Branch, constraint: kv.Constraint) -> None:
    """Run by nobody: what it says is checked by mypy."""
    assert_type(await branch.generate(), kv.Generation)
    assert_type(await branch.generate(max_tokens=5), kv.Generation[str])
    assert_type((await branch.generate()).output, str)
    assert_type(await branch.generate(output=str), kv.Generation[str])
    assert_type(await branch.generate(output=Person), kv.Generation[Person])
    assert_type(await branch.generate(output=Person, max_tokens=5, stop="x", output_retries=0), kv.Generation[Person])
    assert_type((await branch.generate(output=Person)).output.name, str)
    assert_type(await branch.generate(output=Point), kv.Generation[Point])
    assert_type(await branch.generate(output=Movie), kv.Generation[Movie])
    assert_type(await branch.generate(output=Color), kv.Generation[Color])
    assert_type(await branch.generate(output=Literal["yes", "no"]), kv.Generation[Literal["yes", "no"]])
    assert_type(await branch.generate(output=int | None), kv.Generation[int | None])
    assert_type(await branch.generate(output=list[Person]), kv.Generation[list[Person]])
    assert_type(await branch.generate(output=dict[str, int]), kv.Generation[dict[str, int]])
    assert_type(await branch.generate(output=bool), kv.Generation[bool])
    assert_type(await branch.generate(output=kv.Regex("a")), kv.Generation[str])
    assert_type(await branch.generate(output=kv.Grammar("start: /a/")), kv.Generation[str])
    assert_type(await branch.generate(output=kv.JsonSchema({})), kv.Generation[Any])
    assert_type(await branch.generate(output=constraint), kv.Generation[str])
    assert_type(await branch.generate(output=Anything(5)), kv.Generation[str])
    assert_type(branch.stream(), kv.TokenStream)
    assert_type(branch.stream(output=Person, buffer=5), kv.TokenStream[Person])
    async with branch.stream(output=Person) as stream:
        assert_type(stream, kv.TokenStream[Person])
        async for token in stream:
            assert_type(token, kv.Token)
    assert_type(stream.generation, kv.Generation[Person])
    assert_type(stream.generation.output, Person)
    gathered = await kv.gather(branch.generate(output=int), branch.generate(output=int))
    assert_type(gathered[0].output, int)
    read: Sequence[kv.Generation[object]] = gathered  # what holds an int holds an object
    assert read


def refused_by_mypy(branch: kv.Branch) -> None:
    """What is no output, or no parameter."""
    branch.generate(output=5)  # type: ignore[call-overload]
    branch.generate(output={"type": "integer"})  # type: ignore[call-overload]
    branch.generate(max_tokens="5")  # type: ignore[call-overload]
    branch.generate(nothing=5)  # type: ignore[call-overload]
    branch.stream(output_retries=1)  # type: ignore[call-overload]


async def test_they_are_so_at_run_time() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=512) as ctx:
        system = {"role": "system", "content": "You are Nano, a desk agent."}
        trunk = await ctx.branch([system, {"role": "user", "content": "How are you?"}])
        person, points, color, word = await trunk.fork(4)
        assert isinstance((await trunk.generate(max_tokens=32)).output, str)
        assert isinstance((await points.generate(output=Point)).output, Point)
        assert (await color.generate(output=Color)).output is Color.RED
        assert (await word.generate(output=Literal["yes", "no"])).output in ("yes", "no")
        allowed = Anything(ctx.model_info.vocab_size)
        assert isinstance((await person.generate(output=allowed, max_tokens=64)).text, str)
