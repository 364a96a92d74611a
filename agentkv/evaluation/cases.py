"""Cases of tool calling: messages, tools or a world, and the expected outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from .._chat.messages import checked_messages, text_of
from .._types.errors import InvalidInput
from .._types.show import reason_of
from ..agents.tool import Retry
from .worlds import World, WorldData, tools_of

_FORMS = "write one case a line as JSON, or all of them as one JSON array"
ExpectedCall = Annotated[dict[str, dict[str, list[Any]]], Field(min_length=1, max_length=1)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolDefinition(_Document):
    """A tool that is shown to the model and does nothing.

    Attributes:
        name: name for the model.
        description: description for the model.
        parameters: JSON schema of the parameters, of type object.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str = ""
    parameters: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _of_openai(cls, value: Any) -> Any:
        """Takes a tool in OpenAI's form, too: {"type": "function", "function": {...}}."""
        if (
            isinstance(value, Mapping)
            and value.get("type") == "function"
            and isinstance(value.get("function"), Mapping)
        ):
            return {name: part for name, part in value["function"].items() if name != "strict"}
        return value

    @field_validator("parameters")
    @classmethod
    def _of_an_object(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters.get("type") != "object":
            raise ValueError("the schema of parameters must have the type object")
        return parameters


class Expected(_Document):
    """Conditions of a right outcome; all that are set must hold.

    Attributes:
        calls: exactly these calls, in any order: the name of each, and the accepted values of each argument, with ""
            among them for an optional one.
        called: whether there is any call.
        solution: calls that solve the case in its world, each a name and arguments. The final state must equal that
            after these, and each of their results must have been returned by some call.
        says: for each of these lists, one text that the answer must contain as whole words, in any case.
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
    """A case; frozen.

    Attributes:
        id: identifier, unique within its file.
        category: category under which it is counted.
        messages: chat messages; the last is a user's, the first may be the system's.
        tools: tools that do nothing: one message of the model is judged.
        world: data of a world with working tools, instead of `tools`: a whole turn with its answer is judged.
        expected: conditions of a right outcome.
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
        """Replaces a `question` by one user's message."""
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
        """Text of the system message; empty without one."""
        first = self.messages[0]
        return text_of(first) if first["role"] == "system" else ""

    @property
    def conversation(self) -> Sequence[Mapping[str, Any]]:
        """Messages without the system's."""
        return [message for message in self.messages if message["role"] != "system"]

    def solved(self) -> tuple[list[Any], Mapping[str, Any]]:
        """Results of the solution's calls, and the state after them, in the world without its faults. Raises Retry."""
        assert self.world is not None
        world = World(self.world.model_copy(update={"faults": []}))
        return [world.call(*call) for call in self.expected.solution or ()], world.state


def read_cases(path: Path) -> list[Case]:
    """Reads the cases of a file: one a line as JSON, or a JSON array of them, or a single one, over any lines.

    Raises InvalidInput that names the line, or the case in an array, and OSError.
    """
    found: dict[str, Case] = {}
    for where, document in _documents(path.read_bytes()):
        try:
            case = Case.model_validate_json(document) if isinstance(document, bytes) else Case.model_validate(document)
        except ValidationError as error:
            raise InvalidInput(f"{path}, {where}: {_fault(error)}") from error
        if case.id in found:
            raise InvalidInput(f"{path}, {where}: there is a case {case.id!r} before; ids name cases")
        found[case.id] = case
    if not found:
        raise InvalidInput(f"{path} has no cases; {_FORMS}")
    return list(found.values())


def _documents(data: bytes) -> Iterator[tuple[str, Any]]:
    """The cases of a file, each with its place: lines, or what JSON over several lines holds."""
    lines = [(f"line {number}", line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    try:
        whole = from_json(data)
    except ValueError:  # several documents, or none that is whole
        yield from lines
        return
    cases = whole if isinstance(whole, list) else [whole]
    yield from (
        (f"case {number}" if isinstance(whole, list) else lines[0][0], one) for number, one in enumerate(cases, 1)
    )


def _fault(error: ValidationError) -> str:
    """The first fault of a case, with its place in it."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])  # a typo is missed, too
    where = ".".join(map(str, first["loc"]))
    forms = f"; {_FORMS}" if first["type"] == "json_invalid" else ""
    return f"{where + ': ' if where else ''}{reason_of(first)}{forms}"


def chosen(cases: Iterable[Case], categories: Sequence[str], n: int) -> list[Case]:
    """Selects `n` cases of each category, evenly spaced and the same each time; no categories means all.

    Raises InvalidInput for an unknown category.
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
    """Raises InvalidInput for an unknown category."""
    names = list(known)
    for name in asked:
        if name not in names:
            raise InvalidInput(f"there is no category {name!r} here; there are {', '.join(names)}")
