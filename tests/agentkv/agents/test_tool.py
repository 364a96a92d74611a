"""`kv.tool`: what becomes of signatures, type hints and docstrings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator
from enum import Enum
from typing import Annotated, Any, Literal, Protocol, Union

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import agentkv as kv
from agentkv.agents.parameters import InvalidArguments
from tests.waiting import PATIENCE


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    number: int = Field(1, ge=1)


class Point(TypedDict):
    x: float
    y: float


@dataclasses.dataclass
class Box:
    width: int


def nothing() -> None:
    """Does nothing."""


@kv.tool
def order(
    city: str,
    copy: int = 3,
    colour: Colour = Colour.RED,
    to: Address | None = None,
    size: Literal["s", "m"] = "m",
    many: Annotated[int, Field(ge=0, description="mine")] = 2,
    at: list[Point] = [],  # noqa: B006 - pydantic copies it
    *,
    box: Box,
) -> dict[str, str]:
    """Orders something.

    It arrives.

    Args:
        city: The city to
            bring it to.
        copy (int): How many.
        many: not this one

    Returns:
        What was ordered.
    """
    return {"city": city}


def test_the_schema_says_what_the_signature_and_the_docstring_say() -> None:
    assert order.name == "order"
    assert order.description == "Orders something.\n\nIt arrives."
    assert order.definition == {
        "type": "function",
        "function": {"name": "order", "description": order.description, "parameters": order.parameters},
    }
    schema = order.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["city", "box"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert list(properties) == ["city", "copy", "colour", "to", "size", "many", "at", "box"]
    assert properties["city"] == {"type": "string", "description": "The city to bring it to."}
    assert properties["copy"] == {"type": "integer", "default": 3, "description": "How many."}
    assert properties["many"] == {"type": "integer", "default": 2, "minimum": 0, "description": "mine"}
    assert properties["size"] == {"type": "string", "enum": ["s", "m"], "default": "m"}
    assert schema["$defs"]["Colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert schema["$defs"]["Address"]["required"] == ["street"]
    assert "title" not in str(schema)


def test_arguments_are_checked_before_the_function_sees_them() -> None:
    values = order.checked(
        {"city": "Oslo", "box": {"width": 2}, "to": {"street": "A"}, "colour": "blue", "at": [{"x": 1, "y": 2}]}
    )
    assert values["to"] == Address(street="A", number=1)
    assert (values["colour"], values["copy"], values["box"]) == (Colour.BLUE, 3, Box(2))
    for bad, said in [
        ({}, "city: Field required"),
        ({"city": 3, "box": {"width": 2}}, "city: Input should be a valid string"),
        ({"city": "x", "box": {"width": "a"}}, "box.width"),
        ({"city": "x", "box": {"width": 2}, "more": 1}, "more: Extra inputs are not permitted"),
        ({"city": "x", "box": {"width": 2}, "many": -1}, "many: Input should be greater than or equal to 0"),
    ]:
        with pytest.raises(InvalidArguments, match=said):
            order.checked(bad)


def test_defaults_are_not_shared_between_calls() -> None:
    order.checked({"city": "x", "box": {"width": 1}})["at"].append(1)
    assert order.checked({"city": "x", "box": {"width": 1}})["at"] == []


def numpy_style(city: str) -> None:
    """The weather.

    Parameters
    ----------
    city : str
        A city.
    """


def sphinx_style(city: str) -> None:
    """The weather.

    :param city: A city.
    :returns: nothing
    """


def plain_style(city: str) -> None:
    """The weather."""


def undocumented(city: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "description", "about"),
    [
        (numpy_style, "The weather.", "A city."),
        (sphinx_style, "The weather.", "A city."),
        (plain_style, "The weather.", None),
        (undocumented, "", None),
    ],
)
def test_docstrings_of_every_style_are_read(function: Any, description: str, about: str | None) -> None:
    tool = kv.tool(function)
    assert tool.description == description
    assert tool.parameters["properties"]["city"].get("description") == about


def test_a_first_parameter_of_type_run_context_is_not_the_models() -> None:
    @kv.tool
    async def bare(ctx: kv.RunContext, city: str) -> str:  # type: ignore[type-arg]
        return city

    @kv.tool(name="other")
    async def typed(context: kv.RunContext[int], city: str) -> str:
        return city

    for tool in (bare, typed):
        assert tool.takes_context
        assert list(tool.parameters["properties"]) == ["city"]
    assert typed.name == "other"


def test_hints_may_name_what_is_local() -> None:
    class Local(BaseModel):
        x: int

    @kv.tool
    def direct(a: Local) -> None: ...

    @kv.tool(retries=1)
    def with_options(a: Local) -> None: ...

    assert direct.checked({"a": {"x": 1}}) == {"a": Local(x=1)} == with_options.checked({"a": {"x": 1}})


def test_methods_and_partials_are_tools() -> None:
    class Desk:
        def stock(self, product: str) -> int:
            """How many there are."""
            return len(product)

        async def __call__(self, product: str) -> int:
            """The same."""
            return 1

    desk = Desk()
    assert kv.tool(desk.stock).name == "stock"
    assert list(kv.tool(desk.stock).parameters["properties"]) == ["product"]
    assert kv.tool(name="desk")(desk).parameters["required"] == ["product"]
    bound = kv.tool(name="bound")(functools.partial(desk.stock, product="x"))
    assert bound.parameters["properties"]["product"]["default"] == "x"


def test_a_tool_is_still_the_function() -> None:
    assert order("Oslo", box=Box(1)) == {"city": "Oslo"}


def test_a_tool_may_come_with_a_schema_of_its_own() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    tool = kv.Tool("search", "Searches.", schema, nothing, timeout=PATIENCE)
    assert tool.checked({"q": "x"}) == {"q": "x"}
    assert tool.definition["function"]["parameters"] == schema
    bare = kv.Tool("now", "The time.", {"type": "object"}, nothing)
    assert bare.definition["function"]["parameters"] == {"type": "object", "properties": {}}


def no_hint(a) -> None: ...  # type: ignore[no-untyped-def]
def unknown_type(a: object, b: AsyncIterator[Any]) -> None: ...
def unknown_name(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def packed(*a: int) -> None: ...
def packed_names(**a: int) -> None: ...
def positional(a: int, /) -> None: ...
def late_context(a: int, ctx: kv.RunContext[None]) -> None: ...
async def generator(a: int) -> AsyncIterator[int]:
    yield a


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_hint, "parameter a of tool no_hint has no type hint"),
        (unknown_type, "tool unknown_type"),
        (unknown_name, "Nowhere"),
        (packed, r"\*a"),
        (packed_names, r"\*\*a"),
        (positional, "name each|by name"),
        (late_context, "make it the first parameter"),
        (generator, "must return one result"),
        (lambda: 3, "<lambda>"),
        (3, "takes a function"),
        (order, "takes a function"),
        (dict, "takes a function"),
        (min, "min"),
    ],
)
def test_what_is_no_tool_is_refused(function: Any, said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=said):
        kv.tool(function)


class Hooked:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise RuntimeError("no schema today")


Odd = Enum("Odd", {"a": object()})


@pytest.mark.parametrize("hint", [5, [int], {"a": int}, float("nan"), Union, Protocol, Hooked, Odd, Literal["\ud800"]])
def test_a_hint_that_no_schema_comes_of_is_refused(hint: Any) -> None:
    def look(at: Any) -> None: ...

    look.__annotations__["at"] = hint
    with pytest.raises(kv.InvalidInput, match="look"):
        kv.tool(look)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "two words"},
        {"name": "x" * 65},
        {"name": 3},
        {"description": 3},
        {"description": "\ud800"},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "1"},
        {"timeout": float("nan")},
        {"timeout": True},
        {"timeout": 1 << 20_000},
        {"backoff": -1},
        {"retries": -1},
        {"retries": 1.5},
        {"retries": -(1 << 20_000)},
        {"max_result_tokens": 0},
        {"approve": "yes"},
        {"early": None},
        {"on_long": "drop"},
        {"on_error": "ignore"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput, match=next(iter(options))):
        kv.tool(**options)(nothing)
