"""Compiles for macOS and Windows with zig, and runs what it can of Windows under wine.

python -m tests.platforms [--only ROOM]... [--jobs N] [TARGET ...]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .sources import LEFT_OUT, OPTIONS, ROOMS, ROOT, Unit, units

ZIG = Path(sys.prefix) / "zig/bin/python"
BUILD = ROOT / "build/platforms"
WINDOWS = "x86_64-windows-gnu"
LEVEL = "-O1"  # quick to compile, and quick enough to run
TARGETS = ("aarch64-macos", "x86_64-macos", WINDOWS)
# Tests that are linked and run, with the rooms whose objects they need: of those without kernels, which take long.
TESTS = {
    "platform": ("platform",),
    "core": ("platform", "core"),
}


def compiled(target: str, unit: Unit) -> bool:
    """Whether it compiles for that machine; prints what the compiler says otherwise, and of any warning.

    Objects are made, not only looked for errors: whether an instruction set has what kernels use shows in code alone.
    """
    result = object_of(target, unit)
    return _zig(target, *OPTIONS, *unit.options, LEVEL, "-c", "-o", result, unit.source, name=f"{target} {unit.name}")


def object_of(target: str, unit: Unit) -> Path:
    """Where what is compiled goes."""
    return BUILD / target / f"{unit.name}.o"


def _zig(target: str, *arguments: str | Path, name: str) -> bool:
    command = [ZIG, "-m", "ziglang", "c++", "-target", target, *arguments]
    done = subprocess.run(command, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode or done.stdout:
        print(f"--- {name}{': FAILED' if done.returncode else ''}\n{done.stdout}", flush=True)
    return done.returncode == 0


def check(target: str, chosen: list[Unit], jobs: int) -> bool:
    """Whether all of it compiles; prints how many do."""
    (BUILD / target).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        passed = sum(pool.map(lambda unit: compiled(target, unit), chosen))
    print(f"==> {target}: {passed} of {len(chosen)} compile", flush=True)
    return passed == len(chosen)


def run_tests(wine: str, names: list[str]) -> bool:
    """Whether the C++ tests of TESTS run under wine; prints how many do. Their rooms are compiled by then."""
    passed, tests = 0, [test for room in TESTS for test in sorted((ROOT / "tests" / room).glob("test_*.cpp"))]
    tests = [test for test in tests if not names or test.parent.name in names]
    for test in tests:
        rooms = TESTS[test.parent.name]
        objects = [object_of(WINDOWS, unit) for unit in units(WINDOWS) if unit.room in rooms]
        program = BUILD / WINDOWS / f"{test.parent.name}-{test.stem}.exe"
        passed += _zig(
            WINDOWS, *OPTIONS, LEVEL, "-I", ROOT / "tests", "-o", program, test, *objects, name=program.name
        ) and _runs(wine, program)
    print(f"==> {WINDOWS}, under wine: {passed} of {len(tests)} C++ tests pass", flush=True)
    return passed == len(tests)


def _runs(wine: str, program: Path) -> bool:
    environment = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(BUILD / "wine")}
    done = subprocess.run([wine, program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(f"--- {program.name} ended with {done.returncode}\n{done.stdout}", flush=True)
    return done.returncode == 0


def find_wine() -> str | None:
    """The program that runs others of Windows, if there is one. Debian's lies outside of the path."""
    return shutil.which("wine64") or shutil.which("wine") or shutil.which("wine64", path="/usr/lib/wine")


def asked() -> argparse.Namespace:
    """What the command line says. Exits with 2 where it names what there is not, or zig is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.platforms", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--only", action="append", default=[], choices=ROOMS, metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    options = parser.parse_args()
    options.targets = options.targets or TARGETS
    for target in options.targets:
        if target not in TARGETS:
            parser.error(f"no target {target!r}; there are {', '.join(TARGETS)}")
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}, but it must be at least 1")
    if not ZIG.exists():
        parser.error("zig is not here; `make check-platforms` installs it first")
    return options


def wanted(target: str, only: list[str]) -> set[str]:
    """Rooms that are compiled: of Windows also those that the tests of these are linked with."""
    tested = TESTS if target == WINDOWS else {}
    return {room for name in only or ROOMS for room in (name, *tested.get(name, ()))}


def main() -> None:
    """Exits with 1 where anything fails."""
    options = asked()
    print(f"==> Left out, for the lack of headers for these machines: {', '.join(LEFT_OUT)}", flush=True)
    passed = []
    for target in options.targets:
        chosen = [unit for unit in units(target) if unit.room in wanted(target, options.only)]
        passed.append(check(target, chosen, options.jobs))
    if WINDOWS in options.targets:
        if wine := find_wine():
            passed.append(run_tests(wine, options.only))
        else:
            print("==> No test runs: there is no wine here (Debian: apt-get install wine64)", flush=True)
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
