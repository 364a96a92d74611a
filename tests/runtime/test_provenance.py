"""Masked text does what the text does that it stands for, and keeps its stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agentkv_runtime.text.provenance import Masked, joined, masked_kind
from hypothesis import given
from hypothesis import strategies as st

KIND = masked_kind(set("abAB<>|. "), set())
TEXT = st.text("abAB<>|. xX\n\u00df\u4f60", max_size=12)

OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "equal": lambda t, a, b: (t == a, t != a, t < a, t >= a),
    "contains": lambda t, a, b: (a in t, t.startswith(a), t.endswith((a, b)), t.find(a), t.rfind(a), t.count(a)),
    "kinds": lambda t, a, b: (t.isspace(), t.isalpha(), t.isupper(), t.islower(), t.isalnum(), len(t), bool(t)),
    "add": lambda t, a, b: a + t + b,
    "times": lambda t, a, b: (t * 2, 2 * t),
    "slice": lambda t, a, b: (t[1:3], t[::-1], list(t), t[-1:]),
    "strip": lambda t, a, b: (t.strip(), t.lstrip(a), t.rstrip(a), t.strip("\n"), t.removeprefix(a), t.removesuffix(a)),
    "split": lambda t, a, b: (t.split(), t.split(None, 1), t.rsplit(None, 1), t.splitlines(), t.splitlines(True)),
    "split at": lambda t, a, b: (t.split(a or "|"), t.split("|", 1), t.rsplit("|", 1), t.rsplit(a or "<")),
    "partition": lambda t, a, b: (t.partition(a or "|"), t.rpartition(a or "|")),
    "replace": lambda t, a, b: (t.replace(a, b), t.replace("|", b, 1)),
    "case": lambda t, a, b: (t.upper(), t.lower(), t.title(), t.capitalize(), t.swapcase(), t.casefold()),
    "join": lambda t, a, b: (t.join([a, b, a]), t.join([])),
}


def raw(text: str) -> set[str]:
    """The characters that are there, whatever they stand for."""
    return set(text.encode().decode())


def bare(value: Any) -> Any:
    return tuple(map(bare, value)) if isinstance(value, list | tuple) else KIND.bare(value)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@given(text=TEXT, a=TEXT, b=TEXT)
def test_masked_text_does_what_its_text_does(operation: Callable[..., Any], text: str, a: str, b: str) -> None:
    expected = bare(operation(text, a, b))
    assert bare(operation(KIND.cover(text), a, b)) == expected
    assert bare(operation(KIND.cover(text), KIND.cover(a), b)) == expected
    mixed = KIND.cover(text[: len(text) // 2]) + text[len(text) // 2 :]
    assert bare(operation(mixed, a, KIND.cover(b))) == expected


@given(text=TEXT, a=TEXT)
def test_what_comes_of_masked_text_is_masked(text: str, a: str) -> None:
    masked = KIND.cover(text)
    for name in ("slice", "strip", "split", "split at", "partition", "case", "times"):
        for part in OPERATIONS[name](masked, a, a):
            for piece in part if isinstance(part, list | tuple) else [part]:
                assert not raw(piece) & set("abAB<>|. "), name
    lookup = {"content": 1}
    assert lookup.get(KIND.cover("content")) == KIND.cover(lookup)["content"] == 1
    assert isinstance(joined(["x", masked]), Masked)
    assert str(masked) is masked


def test_stand_ins_are_none_of_what_there_is() -> None:
    first = masked_kind("a<", set())
    taken = raw(first.cover("a<"))
    again = masked_kind("a<", taken)
    assert not raw(again.cover("a<")) & taken
    assert first.cover({"a": ["<", ("a", 1)]}) == {"a": ["<", ("a", 1)]}
    with pytest.raises(ValueError, match="different characters"):
        masked_kind("a", {chr(c) for c in range(0x17000, 0x187F8)})
