"""Breaks the sources on purpose, a little each time, and shows which changes no test notices.

make mutants MUTANTS='--count 8 agentkv/_engine/loop.py'; each mutant stands in its module while the tests nearest to it
run. One that lives is tried on what `make test` leaves out, too: soak rows and the other event loop.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import runs_on_the_other_loop
from tests.quick import ROOT, UNKNOWN_S, choose, mirror, nearest
from tests.run import TIMES
from tests.times import seconds_of_files

MIRROR_S, NEAREST_S = 60.0, 30.0  # of tests in the mirrored folder, and of those nearest by imports
HERE = (ROOT / "agentkv", ROOT / "runtime")  # and nothing of .venv, which may lie below ROOT
HANG = ("-o", "timeout=60")
LEFT_OUT = ("--both-loops", "-m", "soak or not soak", "-p", "tests.mutants")
SOAK = {"AGENTKV_SOAK": "40"}  # random cases where `make soak` runs thousands

_PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
OPPOSITE: dict[type[ast.cmpop], Any] = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}


class Mutant(NamedTuple):
    """A module with one change."""

    line: int
    before: str
    after: str
    source: str


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=8, help="mutants of each module (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("modules", nargs="*", type=Path, help="such as agentkv/_engine/loop.py")
    options = parser.parse_args()
    if not options.modules:
        parser.error("which modules? make mutants MUTANTS='agentkv/_engine/loop.py'")
    if options.count < 1:
        parser.error(f"--count is {options.count}, but it must be at least 1")
    for path in options.modules:
        if path.suffix != ".py" or not path.is_file() or not any(folder in path.resolve().parents for folder in HERE):
            parser.error(f"{path} is no module of agentkv/ or runtime/; name one as agentkv/_engine/loop.py")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a module is put back
    rng, alive = random.Random(options.seed), 0
    work = [(path, mutant) for path in options.modules for mutant in some(path, options.count, rng)]
    rng.shuffle(work)  # so that a run that is stopped has seen something of every module
    for path, mutant in work:
        outcome = tried(path.resolve(), mutant.source)
        alive += outcome == "alive"
        print(f"{outcome:7} {path}:{mutant.line}  {mutant.before}  ->  {mutant.after}", flush=True)
    print(f"\n{alive} of {len(work)} are alive")
    if alive:  # tests that lie further away, and notice it by the way, did not run
        print("each is the same program, or wants a test: one that mirrors its module, as only the nearest ran")
    return 0


def some(path: Path, n: int, rng: random.Random) -> Iterator[Mutant]:
    """As many of the small changes that there are."""
    source, every = path.read_text(), _Mutator(sys.maxsize)
    every.visit(ast.parse(source))
    for which in rng.sample(range(every.seen), min(n, every.seen)):
        one = _Mutator(which)
        tree = ast.fix_missing_locations(one.visit(ast.parse(source)))
        yield Mutant(*one.made, ast.unparse(tree))


def tried(path: Path, source: str) -> str:
    """Who notices: `killed` says the tests of `make test`, `soak` those that it leaves out, `alive` none."""
    files, before = tests_of(path), path.read_bytes()
    try:
        path.write_text(source)
        return "killed" if fails(files) else "soak" if fails([*files, *LEFT_OUT]) else "alive"
    finally:
        path.write_bytes(before)


def fails(arguments: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *HANG, *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | SOAK, stdin=subprocess.DEVNULL, capture_output=True)
    return ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def tests_of(path: Path) -> list[str]:
    """Test files: those of the mirrored folder as far as they are quick, then the nearest by imports."""
    seconds, budget, files = seconds_of_files(TIMES), MIRROR_S, []
    for name in nearest([path]):
        if (ROOT / name).parent == mirror(path) and seconds.get(name, UNKNOWN_S) <= budget:
            budget -= seconds.get(name, UNKNOWN_S)
            files.append(name)
    return list(dict.fromkeys([*files, *choose([path], NEAREST_S)]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin: only what `make test` leaves out."""
    names = {item.nodeid for item in items}
    items[:] = [item for item in items if item.get_closest_marker("soak") or runs_on_the_other_loop(item, names)]


class _Mutator(ast.NodeTransformer):
    """Makes the change that is number `which` in a tree, and counts all that it could make."""

    def __init__(self, which: int) -> None:
        self._which = which
        self.seen = 0
        self.made = (0, "", "")

    def visit(self, node: Any) -> Any:
        if isinstance(node, ast.Raise):  # the words of an error
            return node
        decorators = vars(node).pop("decorator_list", None)  # `slots=True`
        self.generic_visit(node)
        if decorators is not None:
            node.decorator_list = decorators
        other = changed(node)
        if other is None:
            return node
        self.seen += 1
        if self.seen - 1 != self._which:
            return node
        self.made = node.lineno, shown(node), shown(other)
        return ast.copy_location(other, node)


def changed(node: ast.AST) -> ast.AST | None:
    """A node that does another thing in its place, where there is one."""
    match node:
        case ast.Compare(left, [op, *ops], comparators) if type(op) in OPPOSITE:
            return ast.Compare(left, [OPPOSITE[type(op)](), *ops], comparators)
        case ast.BoolOp(op, values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            return ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right)
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value)):
            return ast.Constant(value + 1)
        case ast.If(test, body, orelse):
            return ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Expr(ast.Call() | ast.Await()):
            return ast.Pass()
    return None


def shown(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0][:80]


if __name__ == "__main__":
    sys.exit(main())
