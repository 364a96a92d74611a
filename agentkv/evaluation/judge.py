"""Judgement of outcomes.

Arguments, results and states are compared as BFCL does: numbers by value, texts without regard to case, blanks and
punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .cases import Case, ExpectedCall
from .outcome import Called, Outcome

_PUNCTUATION = re.compile(r"[ ,./\-_*^]")
_SIGNS = str.maketrans({"\u2019": "'", "\u2212": "-", "*": " "})
LEFT_OUT = ""  # among the accepted values of an optional argument


class Verdict(NamedTuple):
    """Judgement of an outcome.

    Attributes:
        right: whether all expected conditions hold.
        why: the first violated condition, for a person to read; empty if right.
    """

    right: bool
    why: str


def judged(case: Case, outcome: Outcome) -> Verdict:
    """Judges the outcome of a case."""
    why = outcome.error or _wrong(case, outcome)
    return Verdict(not why, why or "")


def _wrong(case: Case, outcome: Outcome) -> str | None:
    expected, calls = case.expected, outcome.calls
    if expected.called is not None and expected.called != bool(calls):
        return f"called {calls[0]}, and nothing was to be called" if calls else "called nothing"
    if expected.calls is not None:
        return wrong_calls(calls, expected.calls)
    return None if case.world is None else _wrong_turn(case, outcome)


def _wrong_turn(case: Case, outcome: Outcome) -> str | None:
    if outcome.stopped is not None:
        return f"had no answer at its {outcome.stopped}"
    results, state = case.solved()
    returned = [call.result for call in outcome.calls if call.error is None]
    for (name, arguments), result in zip(case.expected.solution or (), results, strict=True):
        if not any(alike(one, result) for one in returned):
            return f"never got what {Called(name, arguments)} returns"
    for part, held in state.items():
        if not alike((outcome.state or {}).get(part), held):
            return f"left {part} as {(outcome.state or {}).get(part)!r}, and not as {held!r}"
    if not outcome.text.strip():
        return "said nothing"
    unsaid = next((texts for texts in case.expected.says if not says(outcome.text, texts)), None)
    return f"did not say {' or '.join(unsaid)}" if unsaid else None


def wrong_calls(calls: Sequence[Called], expected: Sequence[ExpectedCall]) -> str | None:
    """Describes the first difference between calls and expected calls, in any order; None if they match."""
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
    """Returns whether each argument has an accepted value and only optional ones are missing."""
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
    """Returns whether a value equals an accepted one."""
    match value, accepted:
        case (bool(), _) | (_, bool()):
            return value is accepted
        case int() | float(), int() | float():
            return abs(value - accepted) < 1e-9
        case str(), str():
            return plain(value) == plain(accepted)
        case list(), list() | tuple():
            return len(value) == len(accepted) and all(map(same, value, accepted))
        case Mapping(), Mapping():  # each field of an accepted object lists its accepted values
            return all(isinstance(values, list) for values in accepted.values()) and fits(value, accepted)
    return bool(value == accepted)


def plain(text: str) -> str:
    """Normalizes a text as BFCL does: no blanks and punctuation, lower case, one kind of quotes."""
    return _PUNCTUATION.sub("", text).lower().replace("'", '"')


def alike(value: Any, expected: Any) -> bool:
    """Returns whether two states or results are equal: as `same`, with lists in any order."""
    match value, expected:
        case list(), list():
            left = list(value)
            for one in expected:
                place = next((place for place, other in enumerate(left) if alike(other, one)), None)
                if place is None:
                    return False
                del left[place]
            return not left
        case Mapping(), Mapping():
            others = {plain(name): held for name, held in value.items()}
            return len(value) == len(expected) and all(
                plain(name) in others and alike(others[plain(name)], held) for name, held in expected.items()
            )
    return same(value, expected)


def says(text: str, texts: Sequence[str]) -> bool:
    """Returns whether a text contains one of `texts` as whole words or numbers."""
    said = _spoken(text)
    return any(re.search(rf"(?<![\w.-]){re.escape(_spoken(one))}(?!\w)(?!\.\d)", said) for one in texts)


def _spoken(text: str) -> str:
    """Normalizes a text: lower case, plain quotes, blanks and signs, numbers without thousands separators and ".0"."""
    text = " ".join(text.lower().translate(_SIGNS).split())
    text = re.sub(r"\bminus (?=\d)", "-", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    return re.sub(r"(?<=\d)\.0+\b", "", text)
