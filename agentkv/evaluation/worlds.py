"""Small worlds with working tools: deterministic, and new for each run of a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from ..agents.parameters import InvalidArguments
from ..agents.tool import Retry, Tool, tool
from ..terminal.tools import calculate

_TOOLS: Mapping[str, Sequence[str]] = {
    "calculator": ("calculate",),
    "weather": ("get_weather",),
    "notes": ("add_note", "read_note", "delete_note"),
    "files": ("search_files", "read_file"),
    "contacts": ("find_contact",),
    "calendar": ("add_event", "cancel_event"),
    "shop": ("place_order",),
}
"""Names of the tools of each part of a world's data."""

DONE = "done"  # result of tools that only change the state


class Data(BaseModel):
    """Base of parts of a world; frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Weather(Data):
    """Weather of a city; None where a station has no reading."""

    celsius: float | None
    sky: str | None


class Contact(Data):
    """Email address and phone number of a person."""

    email: str | None = None
    phone: str | None = None


class Attendee(Data):
    """Somebody who is invited."""

    name: str
    email: str


class Item(Data):
    """What is ordered: a product in a size, so many times."""

    product: Literal["apples", "bread", "coffee", "milk", "tea"]
    size: Literal["small", "large"]
    count: int = Field(ge=1)


class Address(Data):
    """Where something goes."""

    street: str
    city: str


class Fault(Data):
    """Makes the first `times` calls of a tool fail, with a text for the model."""

    tool: str
    times: int = Field(default=1, ge=1)
    says: str


class WorldData(Data):
    """Data of a world. Each part that is set brings its tools.

    Attributes:
        calculator: whether there is `calculate`.
        weather: weather by city, `get_weather`.
        notes: texts by title, `add_note`, `read_note` and `delete_note`.
        files: texts by path, `search_files` and `read_file`; None for one that is listed and gone.
        contacts: contacts by name, `find_contact`.
        calendar: events by title, `add_event` and `cancel_event`.
        shop: orders, `place_order`.
        faults: faults of tools.
    """

    calculator: bool = False
    weather: dict[str, Weather] | None = None
    notes: dict[str, str] | None = None
    files: dict[str, str | None] | None = None
    contacts: dict[str, Contact] | None = None
    calendar: dict[str, dict[str, Any]] | None = None
    shop: list[dict[str, Any]] | None = None
    faults: list[Fault] = []


class World:
    """A running world: state and tools. Models read the docstrings of the tool methods.

    Attributes:
        tools: tools for agents.
        state: the parts that tools can change, as JSON.
    """

    def __init__(self, data: WorldData) -> None:
        held = data.model_dump()
        self.state = {name: held[name] for name in ("notes", "calendar", "shop") if held[name] is not None}
        self._weather, self._files, self._contacts = held["weather"], held["files"], held["contacts"]
        self._faults = {fault.tool: fault for fault in data.faults}
        self._called: Counter[str] = Counter()
        self._told = {each.name: each for each in tools_of(data)}
        self.tools = [replace(each, function=self._async(name)) for name, each in self._told.items()]

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a call; returns its result as JSON. Raises Retry, with a text for the model, if the call fails."""
        if name not in self._told:
            raise Retry(f"unknown tool {name}; the tools are {', '.join(self._told)}")
        try:
            return self._run(name, self._told[name].checked(arguments))
        except InvalidArguments as error:
            raise Retry(f"bad arguments: {error}") from error

    def _async(self, name: str) -> Callable[..., Any]:
        async def function(**arguments: Any) -> Any:
            return self._run(name, arguments)

        return function

    def _run(self, name: str, arguments: Mapping[str, Any]) -> Any:
        self._called[name] += 1
        fault = self._faults.get(name)
        if fault is not None and self._called[name] <= fault.times:
            raise Retry(fault.says)
        return to_jsonable_python(getattr(self, name)(**arguments))

    def calculate(self, expression: str) -> dict[str, Any]:
        """Compute an expression, such as (3 + 4) * 2.

        Args:
            expression: of numbers, + - * / % and parentheses.
        """
        return calculate(expression)

    def get_weather(self, city: str) -> dict[str, Any]:
        """The weather in a city now: degrees Celsius, and the sky.

        Args:
            city: its name.
        """
        return dict(_entry(self._weather, city, "station in"))

    def add_note(self, title: str, text: str) -> str:
        """Keep a note.

        Args:
            title: a new one.
            text: what the note says.
        """
        self.state["notes"][title] = text
        return DONE

    def read_note(self, title: str) -> str:
        """What a note says.

        Args:
            title: of the note.
        """
        return str(_entry(self.state["notes"], title, "note"))

    def delete_note(self, title: str) -> str:
        """Throw a note away.

        Args:
            title: of the note.
        """
        del self.state["notes"][_key(self.state["notes"], title, "note")]
        return DONE

    def search_files(self, word: str) -> list[str]:
        """Paths of the files that have a word in them, or in their name.

        Args:
            word: to look for.
        """
        return [path for path, text in self._files.items() if word.lower() in f"{path} {text or ''}".lower()]

    def read_file(self, path: str) -> str:
        """The text of a file.

        Args:
            path: of the file, as search_files tells it.
        """
        text = _entry(self._files, path, "file")
        if text is None:
            raise Retry(f"{path} is not there any more")
        return str(text)

    def find_contact(self, name: str) -> dict[str, Any]:
        """The email address and the phone number of a person.

        Args:
            name: of the person.
        """
        return dict(_entry(self._contacts, name, "contact"))

    def add_event(
        self,
        title: str,
        date: str,
        time: str,
        kind: Literal["meeting", "call", "reminder"],
        attendees: list[Attendee] | None = None,
    ) -> str:
        """Put an event into the calendar.

        Args:
            title: of the event.
            date: as 2026-03-31.
            time: as 14:30.
            kind: of the event.
            attendees: who is invited, with name and email address.
        """
        invited = [] if attendees is None else to_jsonable_python(attendees)
        self.state["calendar"][title] = {"date": date, "time": time, "kind": kind, "attendees": invited}
        return DONE

    def cancel_event(self, title: str) -> str:
        """Take an event out of the calendar.

        Args:
            title: of the event.
        """
        del self.state["calendar"][_key(self.state["calendar"], title, "event")]
        return DONE

    def place_order(self, items: list[Item], address: Address, express: bool = False) -> str:
        """Order things from the shop.

        Args:
            items: what is ordered.
            address: where it goes.
            express: is it wanted by tomorrow?
        """
        self.state["shop"].append(to_jsonable_python({"items": items, "address": address, "express": express}))
        return DONE


def tools_of(data: WorldData) -> list[Tool[Any, ..., Any]]:
    """Tools of a world with these parts, as models see them."""
    return [tool for part, tools in _parts().items() if getattr(data, part) not in (None, False) for tool in tools]


@cache
def _parts() -> Mapping[str, Sequence[Tool[Any, ..., Any]]]:
    """Tools of each part, cached: schemas take a moment to make and are the same in all worlds."""
    bare = object.__new__(World)  # its methods are only inspected
    return {part: [tool(getattr(bare, name)) for name in names] for part, names in _TOOLS.items()}


def _entry(held: Mapping[str, Any], name: str, what: str) -> Any:
    """Looks up a value by name. Raises as `_key` does."""
    return held[_key(held, name, what)]


def _key(held: Mapping[str, Any], name: str, what: str) -> str:
    """Finds the key that a name means, in any case. Raises Retry that lists the keys."""
    for key in held:
        if key.lower() == name.strip().lower():
            return key
    raise Retry(f"there is no {what} {name}; there are {', '.join(held) or 'none'}")
