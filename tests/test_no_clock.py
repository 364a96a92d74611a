"""No test passes or fails by the clock: seconds in tests have the names of tests/waiting.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MEASURES = ("benchmarks", "vllm", "clients")  # run by hand, for their times or against others' programs
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "monotonic_ns", "perf_counter_ns"}
WAITS = {"sleep", "fail_after", "move_on_after", "wait", "wait_for", "communicate", "timeout", "join", "acquire"}
LIMITS = {"timeout", "seconds", "max_seconds", "delay"}
SHORT = 60.0  # seconds: what is longer is never waited for, or is there to find a hang
NAMES = {"waiting.py", "times.py", "limits.py"}

# Seconds that no outcome depends on, and why.
HARMLESS: dict[str, str] = {}


def found(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and source of each clock that is read and each short literal number of seconds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            limits = [keyword.value for keyword in node.keywords if keyword.arg in LIMITS]
            for value in [*(node.args[:1] if name in WAITS else ()), *limits]:
                if any(_is_short(seconds) for seconds in _numbers(value)):
                    yield node.lineno, ast.unparse(node)


def _numbers(value: ast.AST) -> Iterator[object]:
    """Literals that a number of seconds is written with; random moments are anywhere, so no outcome is about them."""
    if isinstance(value, ast.Constant):
        yield value.value
    elif isinstance(value, ast.BinOp | ast.IfExp | ast.UnaryOp):
        for part in ast.iter_child_nodes(value):
            if not isinstance(part, ast.Call):
                yield from _numbers(part)


def _is_short(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < SHORT


FILES = [path for path in sorted(TESTS.rglob("*.py")) if path.relative_to(TESTS).parts[0] not in MEASURES]


def test_seconds_have_names() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}:{line}: {source}"
        for path in FILES
        if path.name not in NAMES
        for line, source in found(ast.parse(path.read_text()))
    ]
    assert wrong == [], "take PATIENCE, SOON, NEVER or until of tests/waiting.py"


@pytest.mark.parametrize(
    ("source", "count"),
    [("time.sleep(0.1)", 1), ("time.sleep(0)", 0), ("sleep(NEVER)", 0), ("f(timeout=5)", 1), ("time.monotonic()", 1)],
)
def test_the_lint_finds(source: str, count: int) -> None:
    assert len(list(found(ast.parse(source)))) == count
