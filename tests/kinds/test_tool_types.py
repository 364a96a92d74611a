"""Types of parameters and results of tools: what JSON can say of a type is held by the grammar, the rest is checked.

To add a case, write a row: of PARAMETERS with the schema that calls are held to, a value as the model writes it, what
the function gets of it, and one that the grammar lets through and the check does not (none where there is no such); of
RESULTS with a value, and what the model reads; of REFUSED with a type that no JSON schema comes of.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID

import numpy as np
import pytest
from agentkv_runtime.formats import FAMILIES
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, AnyUrl, BaseModel, ConfigDict, Field, PositiveInt
from typing_extensions import TypedDict

import agentkv as kv
from agentkv.agents.parameters import InvalidArguments
from agentkv.agents.tool_runner import text_of_result
from agentkv.output._tool_schemas import grammar_tools
from tests.agentkv.output.matching import accepts

HERMES = FAMILIES["hermes"].fit({})
NOTHING = object()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    S = 1
    M = 2


class Point(TypedDict):
    x: float
    y: float


@dataclasses.dataclass
class Box:
    width: int
    height: int = 2


class Address(BaseModel):
    street: str
    number: PositiveInt = 1


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date


class Tree(BaseModel):
    value: int
    kids: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Pair(NamedTuple):
    first: int
    second: str = "b"


T = TypeVar("T")


class Parcel(BaseModel, Generic[T]):
    item: T


Number = NewType("Number", int)
STRING, INTEGER, NUMBER, NULL = ({"type": name} for name in ("string", "integer", "number", "null"))
INTEGERS = {"type": "array", "items": INTEGER}


class Row(NamedTuple):
    kind: Any
    held: dict[str, Any] | None
    """Of the parameter; None for a definition of its own."""
    written: Any
    read: Any
    refused: Any = NOTHING


PARAMETERS = [
    Row(str, STRING, "a", "a"),
    Row(bool, {"type": "boolean"}, True, True),
    Row(int, INTEGER, 3, 3),
    Row(float, NUMBER, 3, 3.0),
    Row(None, NULL, None, None),
    Row(Any, {}, [1, {"a": None}], [1, {"a": None}]),
    Row(object, {}, "a", "a"),
    Row(Number, INTEGER, 3, 3),
    Row(complex, STRING, "1+2j", 1 + 2j, "i"),
    Row(Path, STRING, "a/b", Path("a/b")),
    Row(bytes, STRING, "caf\u00e9", "caf\u00e9".encode()),
    Row(set[int], INTEGERS, [3, 1, 3], {1, 3}),
    Row(frozenset[str], {"type": "array", "items": STRING}, ["a"], frozenset("a")),
    Row(Annotated[set[int], Field(min_length=2)], INTEGERS | {"minItems": 2}, [1, 2], {1, 2}, [1, 1]),
    Row(datetime, STRING | {"format": "date-time"}, "2026-11-27T10:00:00Z", datetime(2026, 11, 27, 10, tzinfo=timezone.utc)),  # noqa: E501, UP017
    Row(date, STRING | {"format": "date"}, "2026-11-27", date(2026, 11, 27), "2026-02-29"),
    Row(Annotated[date, Field(gt=date(2020, 1, 1))], STRING | {"format": "date"}, "2026-11-27", date(2026, 11, 27), "2019-01-01"),  # noqa: E501
    Row(time, STRING | {"format": "time"}, "10:30:00Z", time(10, 30, tzinfo=timezone.utc)),  # noqa: UP017
    Row(timedelta, STRING | {"format": "duration"}, "PT90M", timedelta(minutes=90)),
    Row(Decimal, NUMBER, 0.1, Decimal("0.1")),
    Row(Annotated[Decimal, Field(max_digits=4, decimal_places=2)], NUMBER, 1.25, Decimal("1.25"), 1.255),
    Row(UUID, STRING | {"format": "uuid"}, str(UUID(int=7)), UUID(int=7)),
    Row(AnyUrl, STRING | {"format": "uri", "minLength": 1}, "https://a.b/c", AnyUrl("https://a.b/c")),
    Row(ipaddress.IPv4Address, STRING | {"format": "ipv4"}, "1.2.3.4", ipaddress.ip_address("1.2.3.4")),
    Row(ipaddress.IPv4Network, STRING, "10.0.0.0/8", ipaddress.ip_network("10.0.0.0/8"), "10"),
    Row(re.Pattern[str], STRING, "^a+$", re.compile("^a+$"), "["),
    Row(Colour, None, "blue", Colour.BLUE),
    Row(Size, None, 2, Size.M),
    Row(Literal["a", 3], {"enum": ["a", 3]}, 3, 3),
    Row(Annotated[int, Field(ge=1, le=5)], INTEGER | {"minimum": 1, "maximum": 5}, 5, 5),
    Row(Annotated[float, Field(multiple_of=0.5)], NUMBER | {"multipleOf": 0.5}, 1.5, 1.5),
    Row(Annotated[str, Field(max_length=3)], STRING | {"maxLength": 3}, "abc", "abc"),
    Row(Annotated[str, Field(pattern="^a+$")], STRING | {"pattern": "^a+$"}, "aa", "aa"),
    Row(Annotated[str, Field(pattern="^(?=.*b)a")], STRING, "ab", "ab", "aa"),
    Row(tuple[int, str], None, [1, "a"], (1, "a")),
    Row(tuple[int, ...], INTEGERS, [1, 2], (1, 2)),
    Row(Pair, None, [1, "a"], Pair(1, "a")),
    Row(list[int], INTEGERS, [1], [1]),
    Row(Sequence[int], INTEGERS, [1], [1]),
    Row(deque[int], INTEGERS, [1], deque([1])),
    Row(dict[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1}, {"a": 1}),
    Row(dict[int, str], {"type": "object", "additionalProperties": STRING}, {"1": "a"}, {1: "a"}, {"a": "a"}),
    Row(dict[Colour, int], {"type": "object", "additionalProperties": INTEGER}, {"red": 1}, {Colour.RED: 1}, {"a": 1}),
    Row(Mapping[str, Any], {"type": "object", "additionalProperties": True}, {"a": []}, {"a": []}),
    Row(Counter[str], {"type": "object", "additionalProperties": INTEGER}, {"a": 1}, Counter("a")),
    Row(int | str, {"anyOf": [INTEGER, STRING]}, "a", "a"),
    Row(int | list[int], {"anyOf": [INTEGER, INTEGERS]}, [1], [1]),
    Row(int | None, {"anyOf": [INTEGER, NULL]}, None, None),
    Row(Point, None, {"x": 1, "y": 2.5}, {"x": 1.0, "y": 2.5}),
    Row(Box, None, {"width": 1}, Box(1)),
    Row(Address, None, {"street": "a"}, Address(street="a")),
    Row(Strict, None, {"day": "2026-11-27"}, Strict(day=date(2026, 11, 27))),
    Row(Tree, None, {"value": 1, "kids": [{"value": 2}]}, Tree(value=1, kids=[Tree(value=2)])),
    Row(Annotated[Cat | Dog, Field(discriminator="kind")], None, {"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9)),
    Row(Parcel[int], None, {"item": 3}, Parcel[int](item=3)),
]  # fmt: skip


def tool_of(kind: Any) -> kv.Tool[Any, ..., Any]:
    def look(at: Any) -> None: ...

    look.__annotations__["at"] = kind
    return kv.tool(look)


def named(row: Any) -> str | None:
    return re.sub(r"\W+", "-", str(row.kind))[:60] if isinstance(row, Row) else None


@pytest.mark.parametrize("row", PARAMETERS, ids=named)
def test_what_json_can_say_of_a_parameter_is_held(row: Row) -> None:
    (held,) = grammar_tools(HERMES, [tool_of(row.kind).definition], lambda *_: None)
    schema = held["function"]["parameters"]
    if row.held is not None:
        assert schema["properties"]["at"] == row.held
    grammar = kv.JsonSchema(schema).grammar
    for value in (row.written, *([] if row.refused is NOTHING else [row.refused])):
        assert accepts(grammar, json.dumps({"at": value}, ensure_ascii=False)), value
    assert not accepts(grammar, '{"to": 1}')


@pytest.mark.parametrize("row", PARAMETERS, ids=named)
def test_what_a_function_gets_is_of_its_type(row: Row) -> None:
    tool = tool_of(row.kind)
    made = tool.checked({"at": row.written})["at"]
    assert made == row.read
    assert type(made) is type(row.read)
    if row.refused is not NOTHING:
        with pytest.raises(InvalidArguments, match="at"):
            tool.checked({"at": row.refused})


REFUSED = [range, Callable[[], int], type, timezone, Iterator[int], memoryview, Exception]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_without_json_is_refused_by_its_parameter(kind: Any) -> None:
    with pytest.raises(kv.InvalidInput, match="parameter at of tool look has no JSON schema: ") as caught:
        tool_of(kind)
    assert not re.search("arbitrary|core.schema", str(caught.value))
    assert "a pydantic model" in str(caught.value)


def defaults(
    a: int | None = None, b: int | None = 3, c: set[int] = frozenset(), *, d: Path = Path(), e: int | None
) -> None: ...  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"e": 1}, {"a": None, "b": 3, "c": set(), "d": Path(), "e": 1}),
        ({"a": 1, "b": None, "c": [2], "d": "x", "e": None}, {"a": 1, "b": None, "c": {2}, "d": Path("x"), "e": None}),
    ],
)
def test_what_has_a_default_may_be_left_out(given: dict[str, Any], read: dict[str, Any]) -> None:
    tool = kv.tool(defaults)
    assert tool.parameters["required"] == ["e"]
    assert tool.checked(given) == read
    with pytest.raises(InvalidArguments, match="e: Field required"):
        tool.checked({})


@pytest.mark.parametrize(
    ("kind", "default", "shown"),
    [
        (Decimal, Decimal("0"), 0),
        (Decimal, Decimal("1.5"), 1.5),
        (list[Decimal], [Decimal("2")], [2]),
        (dict[str, Decimal], {"a": Decimal("2.25")}, {"a": 2.25}),
        (Path, Path("x"), "x"),
    ],
)
def test_a_default_is_of_its_schema(kind: Any, default: Any, shown: Any) -> None:
    def look(at: Any = default) -> None: ...

    look.__annotations__["at"] = kind
    schema = kv.tool(look).parameters["properties"]["at"]
    assert (schema["default"], type(schema["default"])) == (shown, type(shown))
    Draft202012Validator(schema).validate(shown)


@pytest.mark.parametrize("kind", [ValueError, AssertionError])
def test_a_validator_is_quoted_in_its_own_words(kind: type[Exception]) -> None:
    def refuse(value: int) -> int:
        raise kind("take another")

    with pytest.raises(InvalidArguments, match=r"^at: take another$"):
        tool_of(Annotated[int, AfterValidator(refuse)]).checked({"at": 1})


RESULTS = [
    ("plain", "plain"),
    (None, "null"),
    (True, "true"),
    (Path("a/b"), '"a/b"'),
    ("caf\u00e9".encode(), '"caf\u00e9"'),
    ({3}, "[3]"),
    (frozenset("a"), '["a"]'),
    (datetime(2026, 11, 27, 10), '"2026-11-27T10:00:00"'),
    (date(2026, 11, 27), '"2026-11-27"'),
    (time(10, 30), '"10:30:00"'),
    (timedelta(minutes=90), '"PT1H30M"'),
    (Decimal("1.10"), '"1.10"'),
    (UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    (Colour.RED, '"red"'),
    ({Size.M: {1}}, '{"2": [1]}'),
    (Box(1), '{"width": 1, "height": 2}'),
    (Address(street="a"), '{"street": "a", "number": 1}'),
    (Pair(1), '[1, "b"]'),
    ((1, [Path("a")]), '[1, ["a"]]'),
    (deque([1]), "[1]"),
    (Counter("aab"), '{"a": 2, "b": 1}'),
    (range(3), "[0, 1, 2]"),
    ({"a": 1}.keys(), '["a"]'),
    ((i for i in "ab"), '["a", "b"]'),
    (ipaddress.ip_address("1.2.3.4"), '"1.2.3.4"'),
    (np.int64(3), "3"),
    (np.array([[1.5], [2]]), "[[1.5], [2.0]]"),
    ({"a": np.bool_(True)}, '{"a": true}'),
]


@pytest.mark.parametrize(("result", "text"), RESULTS, ids=lambda value: type(value).__name__)
def test_results_are_json(result: Any, text: str) -> None:
    assert text_of_result(result) == text


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (b"\xff", "bytes or a key that are no text"),
        ({"a": [b"\xff"]}, "bytes or a key that are no text"),
        ({"\ud800": 1}, "bytes or a key that are no text"),
        (object(), "no JSON form"),
    ],
)
def test_what_has_no_text_says_so(result: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        text_of_result(result)
