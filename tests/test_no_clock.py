"""No test passes or fails by the clock: seconds in tests have the names of tests/waiting.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MEASURES = (
    "benchmarks",
    "vllm",
    "clients",
    "times.py",
    "run.py",
    "flaky.py",
    "slow_calls",
    "limits.py",
)  # by hand, for their times or against others' programs
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "monotonic_ns", "perf_counter_ns"}
WAITS = {"sleep", "fail_after", "move_on_after", "wait", "wait_for", "communicate", "timeout", "join"}
WAITS |= {"result", "exception"}
LIMITS = {"timeout", "seconds", "max_seconds", "delay"}
RECORDS = {"Outcome"}  # they have seconds that nobody waits
SHORT = 60.0  # seconds: what is longer is never waited for, or is there to find a hang

# "path: source" of seconds that no outcome depends on, and why.
HARMLESS = {
    "waiting.py: time.monotonic": "it bounds what hangs",
    "runtime/test_sandbox.py: time.sleep(0.002)": "takes none of the processor's time, which alone is limited",
    "runtime/test_sandbox.py: render('{% for a in range(200) %}{{ waits }}{% endfor %}', seconds=0.2, waits=Waits())": (
        "of the processor's time, of which it takes a few hundredths; the clock runs twice as long"
    ),
}


def found(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and source of each clock that is read and each short literal number of seconds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            limits = [keyword.value for keyword in node.keywords if keyword.arg in LIMITS and name not in RECORDS]
            joins = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)  # strings
            for value in [*(node.args if name in WAITS and not joins else ()), *limits]:
                if any(_is_short(seconds) for seconds in _numbers(value)):
                    yield node.lineno, ast.unparse(node)


def _numbers(value: ast.AST) -> Iterator[object]:
    """Literals that a number of seconds is written with; a random moment may be any, so no outcome is about it."""
    if isinstance(value, ast.Constant):
        yield value.value
    elif isinstance(value, ast.BinOp | ast.IfExp) and "random()" not in ast.unparse(value):
        for part in ast.iter_child_nodes(value):
            if not _is_count(part):
                yield from _numbers(part)


def _is_count(part: ast.AST) -> bool:
    """As in `2 * SOON`."""
    return isinstance(part, ast.Constant) and isinstance(part.value, int)


def _is_short(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < SHORT


FILES = [path for path in sorted(TESTS.rglob("*.py")) if path.relative_to(TESTS).parts[0] not in MEASURES]


def test_seconds_have_names() -> None:
    places = [
        (f"{path.relative_to(TESTS).as_posix()}: {source}", line)
        for path in FILES
        for line, source in found(ast.parse(path.read_text()))
    ]
    wrong = [f"line {line} of {place}" for place, line in places if place not in HARMLESS]
    assert wrong == [], "take PATIENCE, SOON, NEVER or until of tests/waiting.py"
    assert HARMLESS.keys() <= {place for place, _ in places}, "what is not there any more needs no row"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("time.sleep(0.1)", 1),
        ("time.sleep(0)", 0),
        ("time.sleep(0.1 if slow else 0.2)", 1),
        ("time.sleep(rng.random() * 0.1)", 0),
        ("sleep(NEVER)", 0),
        ("f(timeout=2 * SOON)", 0),
        ("f(timeout=-1)", 0),
        ("' '.join(['a'] * 10)", 0),
        ("wait_for(task, 5)", 1),
        ("f(timeout=5)", 1),
        ("time.monotonic()", 1),
    ],
)
def test_the_lint_finds(source: str, count: int) -> None:
    assert len(list(found(ast.parse(source)))) == count
