"""Checks of what a user gives: what is taken, and what is refused before anything begins."""

from __future__ import annotations

import pytest

from agentkv._types.checks import checked_stop
from agentkv._types.errors import InvalidInput

STOPS = [
    (None, []),
    ("\n", ["\n"]),
    ([], []),
    (("a", "b"), ["a", "b"]),
    ((text for text in "ab"), ["a", "b"]),
]
NO_STOPS = [
    (5, "stop is int 5, but it must be a str or a list of str"),
    ("", "stop has str '', but each stop string must be a str with at least 1 character"),
    (["a", 5], "stop has int 5, but each stop string"),
    (["a", ""], "stop has str '', but each stop string"),
    (["\ud800"], "stop"),  # no UTF-8 form
]


@pytest.mark.parametrize(("given", "stop"), STOPS)
def test_stop_strings_are_one_or_several(given: object, stop: list[str]) -> None:
    assert checked_stop(given) == stop


@pytest.mark.parametrize(("given", "why"), NO_STOPS)
def test_what_is_no_stop_string_is_refused(given: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{why}"):
        checked_stop(given)
