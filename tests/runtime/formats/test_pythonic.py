"""Calls that are written as Python."""

from __future__ import annotations

from typing import Any

import pytest
from agentkv_runtime.formats.pythonic import parse_calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[]", []),
        ("f()", [("f", {})]),
        (" [ f ( a = 1 ) , g(b=-2.5) ] ", [("f", {"a": 1}), ("g", {"b": -2.5})]),
        ("[a.b-c(x=True, y=false, z=null)]", [("a.b-c", {"x": True, "y": False, "z": None})]),
        ("[f(s='a)]\\'', t=\"[(\\\"\", u='\\d')]", [("f", {"s": "a)]'", "t": '[("', "u": "\\d"})]),
        ("[f(l=[1, (2, {'a': 'b'})], d={})]", [("f", {"l": [1, [2, {"a": "b"}]], "d": {}})]),
    ],
)
def test_calls_are_read(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert parse_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        *("1", "[1]", "f", "[f(]", "f(1)", "f(**{})", "f(a=b)", "f(a=g())", "f(a=1)(b=2)", "f(a={1: 2})", "f(a={**x})"),
        *(
            "f(a=1j)",
            "f(a=b'')",
            "f(a=f'{b}')",
            "f(a=1 + 1)",
            "f(a=-True)",
            "a b(c=1)",
            "f(a=",
            "f(" + "[" * 5000,
            "[f(), 1]",
        ),
    ],
)
def test_what_is_no_call_is_refused_and_never_run(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_calls(text)
