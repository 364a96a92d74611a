"""What is right: the one place that says so.

Arguments are compared as BFCL does: numbers by value, texts without regard to case, blanks and punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .cases import Case, ExpectedCall
from .outcome import Called, Outcome

_PUNCTUATION = re.compile(r"[ ,./\-_*^]")
LEFT_OUT = ""  # among the accepted values of an argument that may be left out


class Verdict(NamedTuple):
    """What was judged.

    Attributes:
        right: is all as expected?
        why: what is not, for a person to read; empty where it is right.
    """

    right: bool
    why: str


def judged(case: Case, outcome: Outcome) -> Verdict:
    """What a case's outcome is worth."""
    why = outcome.error or _wrong(case, outcome)
    return Verdict(not why, why or "")


def _wrong(case: Case, outcome: Outcome) -> str | None:
    expected, calls = case.expected, outcome.calls
    if expected.called is not None and expected.called != bool(calls):
        return f"called {calls[0]}, and nothing was to be called" if calls else "called nothing"
    return None if expected.calls is None else wrong_calls(calls, expected.calls)


def wrong_calls(calls: Sequence[Called], expected: Sequence[ExpectedCall]) -> str | None:
    """Why these calls are not the expected ones, in any order; None where they are."""
    if expected and not calls:
        return "called nothing"
    left = [next(iter(call.items())) for call in expected]
    for call in calls:
        named = [accepted for accepted in left if accepted[0] == call.name]
        found = next((accepted for accepted in named if fits(call.arguments, accepted[1])), None)
        if found is not None:
            left.remove(found)
        elif named:
            return f"{call.name}: {_wrong_arguments(call.arguments, named[0][1])}"
        else:
            return f"called {call}, which is not expected"
    return f"did not call {', '.join(name for name, _ in left)}" if left else None


def fits(arguments: Mapping[str, Any], accepted: Mapping[str, Sequence[Any]]) -> bool:
    """Is each argument one of the accepted values, and what is left out of those that may be?"""
    return _wrong_arguments(arguments, accepted) is None


def _wrong_arguments(arguments: Mapping[str, Any], accepted: Mapping[str, Sequence[Any]]) -> str | None:
    for name, value in arguments.items():
        if name not in accepted:
            return f"has no argument {name}"
        if not any(same(value, one) for one in accepted[name]):
            return f"{name} is {value!r}, and not {' or '.join(map(repr, accepted[name]))}"
    missing = [name for name, values in accepted.items() if name not in arguments and LEFT_OUT not in values]
    return f"{', '.join(missing)} left out" if missing else None


def same(value: Any, accepted: Any) -> bool:
    """Is a value what is accepted?"""
    match value, accepted:
        case (bool(), _) | (_, bool()):
            return value is accepted
        case int() | float(), int() | float():
            return abs(value - accepted) < 1e-9
        case str(), str():
            return plain(value) == plain(accepted)
        case list(), list() | tuple():
            return len(value) == len(accepted) and all(map(same, value, accepted))
        case Mapping(), Mapping():  # of an accepted object each field has its accepted values
            return all(isinstance(values, list) for values in accepted.values()) and fits(value, accepted)
    return bool(value == accepted)


def plain(text: str) -> str:
    """A text without what BFCL does not look at."""
    return _PUNCTUATION.sub("", text).lower().replace("'", '"')
