"""Cases of tool calling: what is asked, with which tools, and what is right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .._chat.messages import checked_messages, text_of
from .._types.errors import InvalidInput
from ..agents.tool import Retry
from .worlds import World, WorldData, tools_of

ExpectedCall = Annotated[dict[str, dict[str, list[Any]]], Field(min_length=1, max_length=1)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolDefinition(_Document):
    """A tool that is told to the model and does nothing.

    Attributes:
        name: what the model calls it.
        description: what the model reads of it.
        parameters: JSON schema of an object.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str = ""
    parameters: dict[str, Any]

    @field_validator("parameters")
    @classmethod
    def _of_an_object(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters.get("type") != "object":
            raise ValueError("the schema of parameters must have the type object")
        return parameters


class Expected(_Document):
    """What is right. All that is given must hold; a field that is left out asks for nothing.

    Attributes:
        calls: exactly these calls, in any order: of each its name, and for each argument the values that are accepted,
            "" among them where it may be left out.
        called: whether anything is called at all.
        solution: of a world, calls that do what is asked, each a name and arguments: the world must be in the end as
            after these, and whatever they return must have been returned by some call.
        says: what the answer must say: of each of these lists one text, as words of their own, in whatever case.
    """

    calls: list[ExpectedCall] | None = None
    called: bool | None = None
    solution: list[tuple[str, dict[str, Any]]] | None = None
    says: list[Annotated[list[str], Field(min_length=1)]] = []

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("it says nothing, so that anything would be right")
        return self


class Case(_Document):
    """One case; frozen.

    Attributes:
        id: names it within its file.
        category: what is counted together.
        messages: chat messages that end with a user's; the first may be the system's.
        tools: what the model may call. They do nothing: one message of the model is judged.
        world: what tools work in, instead of `tools`: a whole turn is judged, to the answer.
        expected: what is right.
    """

    id: str
    category: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[ToolDefinition] = []
    world: WorldData | None = None
    expected: Expected

    @model_validator(mode="before")
    @classmethod
    def _question(cls, value: Any) -> Any:
        """A `question` is the one message of a user."""
        if isinstance(value, Mapping) and "question" in value and "messages" not in value:
            rest = {name: part for name, part in value.items() if name != "question"}
            return {**rest, "messages": [{"role": "user", "content": value["question"]}]}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.tools) == (self.world is not None):
            raise ValueError("a case has either tools, which do nothing, or a world")
        if len({tool.name for tool in self.tools}) < len(self.tools):
            raise ValueError("two tools have one name")
        checked_messages(self.messages)
        if any(message["role"] == "system" for message in self.messages[1:]):
            raise ValueError("the first message alone may be the system's")
        if self.messages[-1]["role"] != "user":
            raise ValueError("messages must end with a user's")
        if self.world is None:
            if self.expected.solution is not None or self.expected.says:
                raise ValueError("solution and says are of a whole turn, which needs a world")
            return self
        names = [tool.name for tool in tools_of(self.world)]
        if not names:
            raise ValueError("the world has no tools")
        for fault in self.world.faults:
            if fault.tool not in names:
                raise ValueError(f"a fault is of {fault.tool}; the tools of the world are {', '.join(names)}")
        try:
            self.solved()
        except Retry as error:
            raise ValueError(f"the solution does not work: {error}") from error
        return self

    @property
    def instructions(self) -> str:
        """The system's message, or nothing."""
        first = self.messages[0]
        return text_of(first) if first["role"] == "system" else ""

    @property
    def conversation(self) -> Sequence[Mapping[str, Any]]:
        """The messages but the system's."""
        return [message for message in self.messages if message["role"] != "system"]

    def solved(self) -> tuple[list[Any], Mapping[str, Any]]:
        """What the calls of the solution return, and the world after them, had it no faults. Raises Retry."""
        assert self.world is not None
        world = World(self.world.model_copy(update={"faults": []}))
        return [world.call(*call) for call in self.expected.solution or ()], world.state


def read_cases(path: Path) -> list[Case]:
    """The cases of a file of JSON Lines, one a line. Raises InvalidInput that names the line, OSError."""
    found: dict[str, Case] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            case = Case.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InvalidInput(f"{path}, line {number}: {where + ': ' if where else ''}{first['msg']}") from error
        if case.id in found:
            raise InvalidInput(f"{path}, line {number}: there is a case {case.id!r} before; ids name cases")
        found[case.id] = case
    if not found:
        raise InvalidInput(f"{path} has no cases; write one a line, as JSON")
    return list(found.values())


def chosen(cases: Iterable[Case], categories: Sequence[str], n: int) -> list[Case]:
    """Of each category `n` cases at even distances, the same ones each time; no categories means all.

    Raises InvalidInput for a category that there is not.
    """
    by_category: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_category[case.category].append(case)
    check_categories(categories, by_category)
    return [
        case
        for name in categories or by_category
        for case in by_category[name][:: max(1, len(by_category[name]) // n)][:n]
    ]


def check_categories(asked: Iterable[str], known: Iterable[str]) -> None:
    """Raises InvalidInput for a category that there is not."""
    names = list(known)
    for name in asked:
        if name not in names:
            raise InvalidInput(f"there is no category {name!r} here; there are {', '.join(names)}")
