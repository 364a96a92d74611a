"""Runs the tests that a change most likely breaks, under two minutes: the nearest by imports first.

A test file is as far from a change as imports lead from the one to the other; what mirrors a changed file is nearest,
and half of the time is for the folders of tests that mirror those of the changed files. Seconds are those of the last
`make test` here; where nothing has run yet, each file counts as 3. The run ends at the tenth failure.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.imports import imports_in
from tests.run import LIMIT_S, TIMES, pytest_command, run
from tests.times import seconds_of_files

ROOT = Path(__file__).resolve().parents[1]
BUDGET_S = 90.0  # of the workers' time, whose start comes on top
UNKNOWN_S = 3.0  # a file that has not run yet
MOST_FAILURES = 10  # they are told at the end, so that more would be waited for
HANG_S = 30  # limit of a test; one that turns in a circle gets it five times
SOURCES = {
    "agentkv": ROOT / "agentkv",
    "agentkv_runtime": ROOT / "runtime" / "agentkv_runtime",
    "tests": ROOT / "tests",
}
MIRRORS = {
    "agentkv": ROOT / "tests" / "agentkv",
    "agentkv_runtime": ROOT / "tests" / "runtime",
    "tests": ROOT / "tests",
}
NATIVE, PAGES = "agentkv_runtime._core", "tests.docs.reader"
OTHERS = {".cpp": NATIVE, ".h": NATIVE, ".md": PAGES}  # what stands for files that are no Python


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make quick", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="what has changed since then (%(default)s)")
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="names the files and runs nothing")
    options = parser.parse_args()
    try:
        changed = list(changes(options.since))
    except subprocess.CalledProcessError:  # git has said what it does not know
        parser.error(f"--since is {options.since!r}, but it must be a commit or a branch")
    chosen = choose(changed, BUDGET_S * options.workers)
    if not chosen:
        print("==> No test lies near what has changed" if changed else f"==> Nothing has changed since {options.since}")
        print("QUICK='--since main' looks at a whole branch; `make test` runs everything")
        return 0
    print(f"==> Changed: {_some(changed)}")
    print(f"==> {len(chosen)} test files, the nearest first: {_some(chosen)}")
    if left := [name for name in nearest(changed) if name not in chosen]:
        print(f"==> {len(left)} further ones take longer than is left, and run in `make test`: {_some(left)}")
    if any(OTHERS.get(path.suffix) == NATIVE for path in changed):
        print("==> Tests in C++ are not among them: `make ctest`")
    if options.list:
        print("\n".join(chosen))
        return 0
    sys.stdout.flush()
    in_order = "--no-loadscope-reorder"  # else files of many tests would be the first
    soon = ("-o", f"timeout={HANG_S}", f"--maxfail={MOST_FAILURES}")
    return run(pytest_command(options.workers, [*chosen, in_order, *soon]), LIMIT_S)


def _some(paths: Sequence[Path | str]) -> str:
    names = [str(path.relative_to(ROOT) if isinstance(path, Path) else path) for path in paths]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def changes(since: str) -> Iterator[Path]:
    """Files that differ from a commit, new ones too."""
    for command in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]):
        for line in subprocess.check_output(["git", *command], cwd=ROOT, text=True).splitlines():
            yield ROOT / line


def choose(changed: Iterable[Path], budget: float) -> list[str]:
    """Test files, as many as fit into the budget of seconds; one that does not is passed over.

    The nearest is among them in any case. Files of the mirrored folders have half of the budget and come first, behind
    those that changed: what a module does is often tested through a public verb, many imports away.
    """
    changed, seconds = set(changed), seconds_of_files(TIMES)
    near, mirrors = nearest(changed), {mirror(path) for path in changed}
    spent, chosen = 0.0, set[str]()
    beside_it = [name for name in near if (ROOT / name).parent in mirrors]
    for names, limit in ((beside_it, budget / 2), (near, budget)):
        for name in names:
            needed = seconds.get(name, UNKNOWN_S)
            if name not in chosen and (spent + needed <= limit or name == near[0]):
                spent += needed
                chosen.add(name)
    return sorted(chosen, key=lambda name: (ROOT / name not in changed, name not in beside_it, near.index(name)))


def mirror(path: Path) -> Path | None:
    """The folder of tests that mirrors the folder of a file; where there is none, the next one above."""
    for package, folder in SOURCES.items():
        if folder in path.parents:
            tests = MIRRORS[package].joinpath(*(part.strip("_") for part in path.relative_to(folder).parent.parts))
            while not tests.is_dir():
                tests = tests.parent
            return tests
    return None


def nearest(changed: Iterable[Path]) -> list[str]:
    """Test files by their distance from what has changed; those that changed themselves are the first."""
    files, importers, changed = modules(), graph(), set(changed)
    distance = {name: 0 for path in changed for name in beside(path, files)}
    queue = collections.deque(distance)
    while queue:
        name = queue.popleft()
        for importer in importers.get(name, set()) - distance.keys():
            distance[importer] = distance[name] + 1
            queue.append(importer)
    tests = [name for name in distance if files.get(name, ROOT).name.startswith("test_")]
    return [
        str(files[name].relative_to(ROOT))
        for name in sorted(tests, key=lambda name: (distance[name], files[name] not in changed, name))
    ]


def beside(path: Path, files: dict[str, Path]) -> Iterator[str]:
    """The module of a file and the tests that mirror it."""
    if path.suffix in OTHERS:
        yield OTHERS[path.suffix]
    yield from (name for name, file in files.items() if file == path or file.name == f"test_{path.stem.strip('_')}.py")


@functools.cache
def modules() -> dict[str, Path]:
    """Files by the names that imports have for them."""
    files = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


@functools.cache
def graph() -> dict[str, set[str]]:
    """Who imports each module."""
    importers = collections.defaultdict(set)
    for name, path in modules().items():
        for target in imports(name, path, modules()):
            importers[target].add(name)
    return dict(importers)


def imports(name: str, path: Path, files: dict[str, Path]) -> Iterator[str]:
    """Modules that a module names in imports, wherever in it; of a package's name, what it takes from inside."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for each in imports_in(package, ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        yield each.inside if each.inside in files or each.inside == NATIVE else each.module


if __name__ == "__main__":
    sys.exit(main())
