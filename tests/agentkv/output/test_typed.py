"""Python types as outputs: their grammars, and the values that texts become."""

from __future__ import annotations

import datetime
import json
import random
import typing
import uuid
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import AfterValidator, AnyUrl, BaseModel, ConfigDict, Field, Json, StringConstraints, TypeAdapter
from typing_extensions import TypedDict

import agentkv as kv
from agentkv.output._typed import FORMATS, Typed

from .matching import accepts, walk


class Color(Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 10


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    color: Color | None = None


class Node(BaseModel):
    value: int
    kids: list[Node] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Renamed(BaseModel):
    inner: int = Field(alias="the-name")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "puppy"]
    name: str


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


@dataclass
class Point:
    x: float
    y: float = 0.0


class Movie(TypedDict, total=False):
    title: typing.Required[str]
    year: int


class Pair(NamedTuple):
    left: int
    right: str


DAY = datetime.date(2026, 11, 22)
ID = "2eb8aa08-aa98-11ea-b4aa-73b441d16380"

# A type, texts with their values, texts that may not come.
CASES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "int": (int, {"0": 0, "-12": -12}, ["1.0", "x", '"1"', "01", " 1", ""]),
    "float": (float, {"0.5": 0.5, "-3": -3.0, "1e3": 1000.0}, [".5", "NaN", "true"]),
    "bool": (bool, {"true": True, "false": False}, ["True", "1", ""]),
    "None": (type(None), {"null": None}, ["None"]),
    "words": (Literal["yes", "no"], {"yes": "yes", "no": "no"}, ['"yes"', "maybe", "yesno"]),
    "one word": (Literal["ok"], {"ok": "ok"}, ["k", ""]),
    "odd words": (
        Literal['a "b"', "x|y", "", "c\n(", "\u00e9\U0001f600"],
        {"": "", "x|y": "x|y", "c\n(": "c\n("},
        ["x"],
    ),
    "numbers": (Literal[1, 2], {"1": 1, "2": 2}, ["3", '"1"']),
    "mixed literal": (Literal["a", 1, None], {'"a"': "a", "1": 1, "null": None}, ["a"]),
    "enum": (Color, {"red": Color.RED, "dark blue": Color.DARK_BLUE}, ["RED", '"red"', "dark"]),
    "number enum": (Level, {"1": Level.LOW, "10": Level.HIGH}, ["0", "11"]),
    "optional word": (Literal["a"] | None, {'"a"': "a", "null": None}, ["a"]),
    "list": (list[int], {"[]": [], "[1, 2]": [1, 2]}, ["[1,2]", "1", '["a"]']),
    "list of words": (list[Color], {'["red"]': [Color.RED]}, ["[red]", '["green"]']),
    "tuple": (tuple[int, str], {'[1, "a"]': (1, "a")}, ["[1]", '[1, "a", 2]']),
    "set": (set[int], {"[1, 2, 1]": {1, 2}}, ['["1"]']),
    "frozenset": (frozenset[str], {'["a"]': frozenset("a")}, ["[1]"]),
    "dict": (dict[str, int], {'{"a": 1}': {"a": 1}, "{}": {}}, ['{"a": "b"}']),
    "union": (int | str, {"1": 1, '"1"': "1"}, ["1.5", "null"]),
    "optional": (int | None, {"1": 1, "null": None}, ["none"]),
    "any": (Any, {'{"a": [null]}': {"a": [None]}}, ["a"]),
    "model": (
        Person,
        {
            '{"name": "Ann", "age": 3}': Person(name="Ann", age=3),
            '{"name": "", "age": 150, "color": "dark blue"}': Person(name="", age=150, color=Color.DARK_BLUE),
            '{"name": "", "age": 0, "color": null}': Person(name="", age=0),
        },
        [
            '{"age": 3, "name": "Ann"}',
            '{"name": "Ann"}',
            '{"name": "Ann", "age": 151}',
            '{"name": "", "age": 1, "own": 1}',
        ],
    ),
    "recursive model": (
        Node,
        {'{"value": 1, "kids": [{"value": 2}]}': Node(value=1, kids=[Node(value=2)])},
        ['{"value": 1, "kids": [2]}'],
    ),
    "model with keys of one's own": (Open, {'{"a": 1, "b": [2]}': Open(a=1, b=[2])}, ['{"b": 1}']),  # type: ignore[call-arg]
    "alias": (Renamed, {'{"the-name": 5}': Renamed(**{"the-name": 5})}, ['{"inner": 5}']),
    "tagged union": (
        Owner,
        {'{"pet": {"kind": "puppy", "name": "Rex"}}': Owner(pet=Dog(kind="puppy", name="Rex"))},
        ['{"pet": {"kind": "cat", "name": "Tom"}}'],
    ),
    "dataclass": (Point, {'{"x": 1.5, "y": -2}': Point(1.5, -2.0), '{"x": 1}': Point(1.0)}, ['{"y": 1}', "{}"]),
    "typed dict": (Movie, {'{"title": "M", "year": 1931}': {"title": "M", "year": 1931}}, ['{"year": 1931}']),
    "named tuple": (Pair, {'[1, "a"]': Pair(1, "a")}, ["[1]"]),
    "bounds": (Annotated[int, Field(ge=3, lt=5)], {"3": 3, "4": 4}, ["2", "5"]),
    "pattern": (Annotated[str, StringConstraints(pattern="^[a-z]{3}$")], {'"abc"': "abc"}, ["abc", '"ab"']),
    "date": (datetime.date, {'"2026-11-22"': DAY}, ['"22.11.2026"', "2026-11-22"]),
    "uuid": (uuid.UUID, {f'"{ID}"': uuid.UUID(ID)}, ['"1"']),
    "url": (AnyUrl, {'"https://example.org/a?b=c"': AnyUrl("https://example.org/a?b=c")}, ['"no url"']),
    "decimal": (Decimal, {"1.50": Decimal("1.50"), "3": Decimal(3)}, ['"1.5"', '"x"']),
    "path": (Path, {'"/tmp/x"': Path("/tmp/x")}, ["/tmp/x"]),
    "bytes": (bytes, {'"abc"': b"abc"}, ["abc"]),
    "deep": (
        dict[str, list[Person | Node]],
        {'{"k": [{"value": 1}, {"name": "A", "age": 1}]}': {"k": [Node(value=1), Person(name="A", age=1)]}},
        ['{"k": [1]}'],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_type_is_what_its_texts_become(case: str) -> None:
    kind, values, never = CASES[case]
    typed: Typed[Any] = Typed.of(kind)
    for text, value in values.items():
        assert accepts(typed.grammar, text), text
        assert typed.read(text) == value
        assert type(typed.read(text)) is type(value)
    assert [text for text in never if accepts(typed.grammar, text)] == []


@pytest.mark.parametrize("case", CASES)
def test_whatever_ends_is_a_value_of_the_type(case: str) -> None:
    kind, _, _ = CASES[case]
    if kind is datetime.date:  # the grammar knows no leap years
        return
    typed: Typed[Any] = Typed.of(kind)
    for seed in range(5):
        text = walk(typed.grammar, random.Random(seed))
        if text is not None:
            TypeAdapter(kind).validate_python(typed.read(text))


def test_formats_that_are_kept_are_those_that_llguidance_knows() -> None:
    for name in FORMATS:
        kv.JsonSchema({"type": "string", "format": name})


class Plain:
    pass


class Broken(BaseModel):
    later: "Nowhere"  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Plain, "pydantic makes no JSON"),
        (Plain(), "pydantic makes no JSON"),
        (typing.Callable[[int], int], "pydantic makes no JSON"),
        (Broken, "not fully defined"),
        (typing.TypedDict("Old", {"a": int}), "typing_extensions.TypedDict"),
        (Person(name="a", age=1), "pydantic makes no JSON"),
        (Literal[2**60], "const has 1152921504606846976"),
        (Annotated[int, Field(json_schema_extra={"not": {"const": 1}})], "not"),
    ],
)
def test_what_is_no_type_of_json_is_refused(kind: Any, said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=said):
        Typed.of(kind)


def test_what_a_validator_refuses_is_invalid() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    class Model(BaseModel):
        numbers: list[Annotated[int, AfterValidator(even)]]

    typed = Typed.of(Model)
    assert typed.read('{"numbers": [2, 4]}').numbers == [2, 4]
    with pytest.raises(kv.OutputInvalid, match=r"numbers\.1: .*must be even") as raised:
        typed.read('{"numbers": [2, 3]}')
    assert raised.value.text == '{"numbers": [2, 3]}'
    with pytest.raises(kv.OutputInvalid, match="refused"):
        Typed.of(datetime.date).read('"2026-02-29"')


def test_half_a_json_is_incomplete() -> None:
    with pytest.raises(kv.OutputIncomplete, match="cut"):
        Typed.of(Person).read('{"name": "Ann')


def test_json_inside_of_json_is_read_twice() -> None:
    assert Typed.of(Json[list[int]]).read(json.dumps("[1, 2]")) == [1, 2]


def test_equal_types_have_one_grammar() -> None:
    assert Typed.of(list[int]) == Typed.of(list[int])
    assert len({Typed.of(list[int]), Typed.of(list[int]), Typed.of(list[float])}) == 2
