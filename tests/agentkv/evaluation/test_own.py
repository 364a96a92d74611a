"""Our own cases, and the worlds that they are in."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from agentkv.agents.tool import Retry
from agentkv.evaluation.cases import Case
from agentkv.evaluation.judge import judged
from agentkv.evaluation.outcome import Called, Outcome
from agentkv.evaluation.own import own_cases
from agentkv.evaluation.worlds import World, WorldData

OWN = own_cases()


def outcome_of(case: Case, skip: int | None = None, text: str | None = None) -> Outcome:
    """What a model makes that calls as the solution has it, again where a tool fails, and says what is to be said."""
    assert case.world is not None
    world, calls = World(case.world), []
    for place, (name, arguments) in enumerate(case.expected.solution or [("find_contact", {"name": "x"})]):
        while place != skip and case.expected.called is not False:
            try:
                calls.append(Called(name, arguments, world.call(name, arguments)))
                break
            except Retry as error:
                calls.append(Called(name, arguments, error=str(error)))
                if case.expected.solution is None:
                    break
    said = "; ".join(texts[0] for texts in case.expected.says) or "Done."
    return Outcome(tuple(calls), said if text is None else text, state=world.state)


def test_there_are_a_hundred_of_several_kinds() -> None:
    assert len({case.id for case in OWN}) == 100
    assert collections.Counter(case.category for case in OWN) == {
        "one_tool": 14,
        "several_tools": 14,
        "parallel": 14,
        "chained": 14,
        "tool_errors": 12,
        "bad_results": 8,
        "no_tool": 14,
        "nested": 10,
    }


def test_a_seed_draws_the_same_and_another_seed_others() -> None:
    assert own_cases() == OWN
    assert [case.id for case in own_cases(7) if case in OWN] == []


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.id)
def test_the_solution_is_right_and_nothing_less_is(case: Case) -> None:
    assert judged(case, outcome_of(case)) == (True, "")
    for skipped in range(len(case.expected.solution or ())):
        assert not judged(case, outcome_of(case, skip=skipped)).right
    assert not judged(case, outcome_of(case, text="")).right
    if case.expected.says:
        assert not judged(case, outcome_of(case, text="Well.")).right
    if case.expected.called is False:
        assert not judged(case, Outcome((Called("calculate", {}),), "Hello.", state=outcome_of(case).state)).right


def test_calling_what_changes_the_world_without_need_is_wrong() -> None:
    case = next(case for case in OWN if case.id == "several_tools_0")
    outcome = outcome_of(case)
    world = World(case.world or WorldData())
    world.call("add_note", {"title": "more", "text": "than was asked"})
    assert judged(case, Outcome(outcome.calls, outcome.text, state=world.state)).why.startswith("left notes as")


DATA: dict[str, Any] = {
    "calculator": True,
    "weather": {"Oslo": {"celsius": 3, "sky": "rainy"}},
    "notes": {"Garden": "roses"},
    "files": {"a.txt": "Apples", "b.txt": None},
    "contacts": {"Anna Berg": {"email": "anna@x.example"}},
    "calendar": {"Lunch": {"date": "2026-01-01", "time": "12:00", "kind": "meeting", "attendees": []}},
    "shop": [],
    "faults": [{"tool": "cancel_event", "times": 2, "says": "try again"}],
}


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("calculate", {"expression": "2 * 3"}, {"result": 6}),
        ("get_weather", {"city": "oslo"}, {"celsius": 3.0, "sky": "rainy"}),
        ("read_note", {"title": " garden "}, "roses"),
        ("search_files", {"word": "apple"}, ["a.txt"]),
        ("search_files", {"word": "txt"}, ["a.txt", "b.txt"]),
        ("search_files", {"word": "pear"}, []),
        ("read_file", {"path": "a.txt"}, "Apples"),
        ("find_contact", {"name": "Anna Berg"}, {"email": "anna@x.example", "phone": None}),
        ("add_note", {"title": "a", "text": "b"}, "done"),
        ("delete_note", {"title": "Garden"}, "done"),
    ],
)
def test_what_tools_return(name: str, arguments: dict[str, Any], result: Any) -> None:
    assert World(WorldData.model_validate(DATA)).call(name, arguments) == result


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("calculate", {"expression": "import os"}, "cannot be computed"),
        ("get_weather", {"city": "Rome"}, "there is no station in Rome; there are Oslo"),
        ("get_weather", {}, "bad arguments: city"),
        ("read_note", {"title": "x"}, "there is no note x; there are Garden"),
        ("delete_note", {"title": "x"}, "there is no note x"),
        ("read_file", {"path": "b.txt"}, "b.txt is not there any more"),
        ("cancel_event", {"title": "Lunch"}, "try again"),
        ("add_event", {"title": "a", "date": "b", "time": "c", "kind": "party"}, "bad arguments: kind"),
        ("place_order", {"items": [{"product": "gold", "size": "large", "count": 1}], "address": {}}, "bad arguments"),
        ("fly", {}, "unknown tool fly; the tools are calculate, get_weather"),
    ],
)
def test_what_tools_refuse(name: str, arguments: dict[str, Any], why: str) -> None:
    world = World(WorldData.model_validate(DATA))
    before = str(world.state)
    with pytest.raises(Retry, match=why):
        world.call(name, arguments)
    assert str(world.state) == before


def test_what_tools_change() -> None:
    data = WorldData.model_validate(DATA)
    world = World(data)
    for _ in range(2):
        with pytest.raises(Retry):
            world.call("cancel_event", {"title": "Lunch"})
    world.call("cancel_event", {"title": "lunch"})
    world.call("delete_note", {"title": "garden"})
    world.call("add_note", {"title": "a", "text": "b"})
    person = {"name": "Anna", "email": "a@x.example"}
    event = {"date": "2026-01-02", "time": "10:00", "kind": "call", "attendees": [person]}
    world.call("add_event", {"title": "Talk", **event})
    item = {"product": "tea", "size": "small", "count": 2}
    order = {"items": [item], "address": {"street": "s", "city": "c"}}
    world.call("place_order", order)
    assert world.state == {
        "notes": {"a": "b"},
        "calendar": {"Talk": event},
        "shop": [{**order, "express": False}],
    }
    assert World(data).state["notes"] == {"Garden": "roses"}  # each is made anew
