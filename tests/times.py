"""Where the time of the suite goes: a pytest plugin that records it, and the tables.

pytest -p tests.times --times FOLDER ...; python -m tests.times FOLDER, or make times TIMES='files --rows 50'
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

Key = Callable[[dict[str, Any]], str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FOLDER", help="records seconds of tests and fixtures there")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--times")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if not hasattr(config, "workerinput"):  # the first process, before any other
            for path in folder.glob("*.jsonl"):
                path.unlink()
        config.pluginmanager.register(Recorder((folder / f"{os.getpid()}.jsonl").open("w")))


class Recorder:
    """Writes a line for each test and each fixture that is made; a test's time is without its fixtures'."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._in_fixtures = [0.0, 0.0]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        start = _clocks()
        try:
            return (yield)
        finally:
            spent = _since(start)
            self._in_fixtures = [a + b for a, b in zip(self._in_fixtures, spent, strict=True)]
            self._write("fixture", f"{fixturedef.baseid or 'tests'}::{fixturedef.argname}", spent)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        start, self._in_fixtures = _clocks(), [0.0, 0.0]
        try:
            return (yield)
        finally:
            spent = [a - b for a, b in zip(_since(start), self._in_fixtures, strict=True)]
            self._write("test", item.nodeid, spent)

    def pytest_unconfigure(self) -> None:
        self._file.close()

    def _write(self, kind: str, name: str, spent: list[float]) -> None:
        wall, cpu = spent
        self._file.write(json.dumps({"kind": kind, "name": name, "wall": wall, "cpu": cpu}) + "\n")


def _clocks() -> list[float]:
    times = os.times()
    return [time.perf_counter(), times.user + times.system + times.children_user + times.children_system]


def _since(start: list[float]) -> list[float]:
    return [now - then for now, then in zip(_clocks(), start, strict=True)]


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        yield from map(json.loads, path.read_text().splitlines())


def _file_of(record: dict[str, Any]) -> str:
    return str(record["name"]).partition("::")[0]


def _folder_of(record: dict[str, Any]) -> str:
    return str(Path(_file_of(record)).parent)


def _function_of(record: dict[str, Any]) -> str:
    return str(record["name"]).partition("[")[0]


def _name_of(record: dict[str, Any]) -> str:
    return str(record["name"])


def seconds_of_files(folder: Path) -> dict[str, float]:
    """Seconds by the clock that each test file took, its own fixtures included."""
    seconds: dict[str, float] = collections.defaultdict(float)
    for record in _lines(folder):
        seconds[_file_of(record)] += record["wall"]
    return seconds


TABLES: dict[str, tuple[str, Key]] = {
    "folders": ("test", _folder_of),
    "files": ("test", _file_of),
    "functions": ("test", _function_of),
    "tests": ("test", _name_of),
    "fixtures": ("fixture", _name_of),
}


def table(folder: Path, name: str, rows: int) -> str:
    """The `rows` largest groups: times run, seconds of processor (children's too), seconds by the clock."""
    kind, key = TABLES[name]
    groups: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for record in _lines(folder):
        if record["kind"] == kind:
            group = groups[key(record)]
            group[0] += 1
            group[1] += record["cpu"]
            group[2] += record["wall"]
    largest = sorted(groups.items(), key=lambda item: -item[1][2])
    total = ("all", [sum(column) for column in zip(*groups.values(), strict=True)])
    lines = [f"{'times':>6} {'cpu s':>8} {'wall s':>8}  {name}"]
    lines += [f"{times:6.0f} {cpu:8.1f} {wall:8.1f}  {key}" for key, (times, cpu, wall) in [total, *largest[:rows]]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="build/times in `make times`")
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}; without: all")
    parser.add_argument("--rows", type=int, default=25, help="of each table (%(default)s)")
    options = parser.parse_args()
    if options.rows < 1:
        parser.error(f"--rows is {options.rows}, but it must be at least 1")
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"there is no table {', '.join(sorted(unknown))}; there are: {', '.join(TABLES)}")
    if not any(_lines(options.folder)):
        parser.error(f"nothing is recorded in {options.folder}: `make test` does that")
    for name in options.tables or TABLES:
        print(table(options.folder, name, options.rows), end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
