"""What is right: calls, arguments, worlds and answers."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.evaluation.judge import alike, judged, same, says, wrong_calls
from agentkv.evaluation.outcome import Called, Outcome

from .conftest import document, in_world, made


@pytest.mark.parametrize(
    ("value", "accepted", "right"),
    [
        (1, 1.0, True),
        (1, 2, False),
        (0.1 + 0.2, 0.3, True),
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        ("1", 1, False),
        ("New York, NY", "new york ny", True),
        ("it's", 'it"s', True),
        ("Paris", "London", False),
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        (["A", "b"], ["a", "B"], True),
        ([1, 2], (1, 2), True),
        ({"city": "Oslo"}, {"city": ["oslo", "bergen"]}, True),
        ({"city": "Oslo"}, {"city": ["oslo"], "unit": ["", "c"]}, True),
        ({"city": "Oslo"}, {"city": ["oslo"], "unit": ["c"]}, False),
        ({"city": "Oslo", "more": 1}, {"city": ["oslo"]}, False),
        ({"city": "Oslo"}, {"city": "Oslo"}, False),
        ([{"a": 1}], [{"a": [1, 2]}], True),
        (None, None, True),
        (None, "", False),
        ("text", ["text"], False),
    ],
)
def test_an_argument_is_one_of_the_accepted(value: Any, accepted: Any, right: bool) -> None:
    assert same(value, accepted) is right


OSLO, ROME = Called("w", {"city": "Oslo"}), Called("w", {"city": "Rome"})
OTHER = Called("other", {})


@pytest.mark.parametrize(
    ("calls", "cities", "why"),
    [
        ([], [], None),
        ([OSLO], ["Oslo"], None),
        ([ROME, OSLO], ["Oslo", "Rome"], None),
        ([], ["Oslo"], "called nothing"),
        ([OSLO], [], "called w(city='Oslo'), which is not expected"),
        ([OSLO, OSLO], ["Oslo"], "called w(city='Oslo'), which is not expected"),
        ([OSLO], ["Oslo", "Rome"], "did not call w"),
        ([ROME], ["Oslo"], "w: city is 'Rome', and not 'Oslo'"),
        ([OSLO, OTHER], ["Oslo"], "called other(), which is not expected"),
        ([Called("w", {})], ["Oslo"], "w: city left out"),
        ([Called("w", {"city": "Oslo", "day": 1})], ["Oslo"], "w: has no argument day"),
    ],
)
def test_calls_are_the_expected_in_any_order(calls: list[Called], cities: list[str], why: str | None) -> None:
    assert wrong_calls(calls, [{"w": {"city": [city]}} for city in cities]) == why


@pytest.mark.parametrize(
    ("value", "expected", "right"),
    [
        ([1, 2], [2, 1], True),
        ([1, 1], [1, 2], False),
        ([1], [1, 1], False),
        ({"Title": "A b."}, {"title": "a b"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 2}, {"x": 1.0}]}, True),
        ({"a": None}, {"a": None}, True),
        (None, {}, False),
        ("x", ["x"], False),
    ],
)
def test_worlds_are_alike(value: Any, expected: Any, right: bool) -> None:
    assert alike(value, expected) is right


@pytest.mark.parametrize(
    ("text", "one", "right"),
    [
        ("It is 391.", "391", True),
        ("It is 1391", "391", False),
        ("It is 391.5", "391", False),
        ("It is 391.0 now", "391", True),
        ("1,391 pens", "1391", True),
        ("**391**", "391", True),
        ("about -5 °C", "-5", True),
        ("about \u22125°C", "-5", True),
        ("minus 5 degrees", "-5", True),
        ("about -5", "5", False),
        ("555-1234.", "555-1234", True),
        ("I can\u2019t find it", "can't", True),
        ("Nothing", "no", False),
        ("by David  CHEN", "david chen", True),
        ("", "no", False),
        ("a+b", "a+b", True),
    ],
)
def test_an_answer_says_a_text_as_words_of_its_own(text: str, one: str, right: bool) -> None:
    assert says(text, ["something else", one]) is right


READ = Called("get_weather", {"city": "Oslo"}, {"celsius": 3.0, "sky": "rainy"})
FAILED = Called("get_weather", {"city": "Oslo"}, error="busy")
STATE: dict[str, Any] = {"notes": {}}


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome((READ,), "It is 3 degrees.", state=STATE), ""),
        (Outcome((FAILED, READ, READ), "It is 3 degrees.", state=STATE), ""),
        (Outcome((), "It is 3 degrees.", state=STATE), "never got what get_weather(city='Oslo') returns"),
        (Outcome((FAILED,), "It is 3 degrees.", state=STATE), "never got what get_weather(city='Oslo') returns"),
        (Outcome((READ,), "It is 4 degrees.", state=STATE), "did not say 3"),
        (Outcome((READ,), " ", state=STATE), "said nothing"),
        (Outcome((READ,), "3", state={"notes": {"a": "b"}}), "left notes as {'a': 'b'}, and not as {}"),
        (Outcome((READ,), "3", state=STATE, stopped="max_rounds"), "had no answer at its max_rounds"),
        (Outcome((READ,), "3", state=STATE, error="StepFailed: x"), "StepFailed: x"),
    ],
)
def test_a_turn_is_judged_by_results_world_and_answer(outcome: Outcome, why: str) -> None:
    assert judged(made(in_world()), outcome) == (not why, why)


@pytest.mark.parametrize(
    ("expected", "outcome", "why"),
    [
        ({"called": False}, Outcome(text="Hello."), ""),
        ({"called": False}, Outcome(text="Hel", stopped="max_tokens"), ""),
        ({"called": False}, Outcome((OSLO,)), "called w(city='Oslo'), and nothing was to be called"),
        ({"called": True}, Outcome((OTHER,)), ""),
        ({"called": True}, Outcome(text="Hello."), "called nothing"),
        ({"called": False}, Outcome(error="no server"), "no server"),
        ({"calls": [{"w": {"city": ["oslo"]}}]}, Outcome((OSLO,)), ""),
        ({"calls": []}, Outcome((OSLO,)), "called w(city='Oslo'), which is not expected"),
    ],
)
def test_a_message_is_judged_by_its_calls(expected: dict[str, Any], outcome: Outcome, why: str) -> None:
    assert judged(made(document(expected=expected)), outcome) == (not why, why)
