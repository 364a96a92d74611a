"""Runs Python tests of what has threads over a native module that is built with ThreadSanitizer.

The interpreter and the libraries are those of everybody, without instrumentation. That is enough: the runtime of the
sanitizer, loaded before them, sees their locks, the interpreter's own among them, and the accesses of what is ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPRESSIONS = Path(__file__).with_name("suppressions.txt")
TESTS = (
    "tests/races",
    "tests/agentkv/aio",
    "tests/agentkv/context",
    "tests/agentkv/engine",
    "tests/agentkv/spec",
    "tests/agentkv/storage",
    "tests/agentkv/sync",
    "tests/agentkv/trace/test_recording.py",
    "tests/conformance/test_byte_layers.py",
    "tests/runtime/test_engine.py",
    "tests/runtime/test_program_sessions.py",
    "tests/runtime/test_python_runner.py",
    "tests/runtime/test_sessions.py",
    "tests/runtime/test_tree_binding.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder that was built with AGENTKV_SANITIZE=thread")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest in place of the tests that `make tsan` runs")
    options = parser.parse_args()
    tests = options.pytest or list(TESTS)
    # Exports that the tests take are made without the sanitizer: torch is slow enough.
    subprocess.run([*pytest_command(tests), "--setup-only"], cwd=ROOT, stdout=subprocess.DEVNULL)
    reports = options.build.resolve() / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    command = [*pytest_command(tests), "-p", "tests.races.plugin"]
    status = subprocess.run(command, cwd=ROOT, env=os.environ | sanitized(options.build, reports)).returncode
    if any(reports.iterdir()):  # also of what comes after the last test, of which the status tells as well
        print(f"==> Reports of the sanitizer are in {reports}")
    return status


def pytest_command(tests: list[str]) -> list[str]:
    """Without MLX, which is not built with the sanitizer: every lock in there would look like none."""
    without = ["-k", "not mlx", "--ignore-glob=*/test_mlx*", "-m", "not soak and not unsanitized"]
    return [sys.executable, "-m", "pytest", "-q", "-n", "0", *without, *tests]


def sanitized(build: Path, reports: Path) -> dict[str, str]:
    """Environment of a process whose native module is that of `build`; its reports go into files of the folder."""
    (module,) = build.resolve().glob("cpp/bindings/_core.*.so")
    flags = {
        "suppressions": SUPPRESSIONS,
        "log_path": reports / "report",
        "history_size": 7,  # both stacks of a race, also where the first access was long ago
        "die_after_fork": 0,  # the interpreter forks children, with threads
    }
    return {
        "AGENTKV_SANITIZED_MODULE": str(module),
        "AGENTKV_SANITIZER_REPORTS": str(reports),
        "LD_PRELOAD": runtime_of(module),
        "TSAN_OPTIONS": ":".join(f"{name}={value}" for name, value in flags.items()),
    }


def runtime_of(module: Path) -> str:
    """The sanitizer's library that a module was linked with."""
    linked = subprocess.check_output(["ldd", str(module)], text=True).splitlines()
    for library in linked:
        if "tsan" in library:
            return library.split("=>")[1].split()[0]
    raise SystemExit(f"{module} has the sanitizer's runtime in no library of its own; build it with GCC")


if __name__ == "__main__":
    sys.exit(main())
