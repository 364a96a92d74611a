"""Dependencies point one way: agentkv -> agentkv_runtime -> cpp, and inside cpp down to core and platform."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.imports import Imported, imports_in

ROOT = Path(__file__).resolve().parent.parent
SDK = sorted((ROOT / "agentkv").rglob("*.py"))
RUNTIME = sorted((ROOT / "runtime" / "agentkv_runtime").rglob("*.py"))
CPP = sorted(path for path in (ROOT / "cpp").rglob("*") if path.suffix in (".h", ".cpp"))

# What each directory of cpp may include of the others.
ALLOWED = {
    "platform": set(),
    "core": {"platform"},
    "cpu": {"core", "platform"},
    "mlx": {"core", "platform"},
    "engine": {"core"},
    "spec": {"core", "engine"},
    "executorch": {"platform", "core", "cpu", "mlx", "engine", "spec"},
    "bindings": {"core", "cpu", "mlx", "engine", "spec", "executorch"},
}
HEAVY = {"torch", "transformers", "torchao", "executorch"}
TOP = {
    *(".ci", ".clang-format", ".github", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CMakeLists.txt"),
    *("CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "agentkv", "agentkv_command", "cmake", "cpp", "docs"),
    *("examples", "mkdocs.yml", "pyproject.toml", "runtime", "tests"),
}
# The parts of the runtime that may use torch: export, what it reads, the torch backend, and what they share.
HEAVY_PARTS = {"export", "sources", "torch_backend", "hf"}
# What each of those may import of the others.
SHARED = {"export": {"hf", "sources"}, "sources": {"hf"}, "torch_backend": {"hf"}, "hf": set()}


def imported(path: Path) -> set[str]:
    """Absolute names of every module that a file imports, wherever in it."""
    package = path.relative_to(ROOT).parent.parts[path.is_relative_to(ROOT / "runtime") :]
    return _names(imports_in(package, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))


def _names(found: Iterable[Imported]) -> set[str]:
    return {name for each in found for name in (each.module, each.inside)}


def tops(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", SDK, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_sdk_reaches_neither_torch_nor_the_native_module(path: Path) -> None:
    names = imported(path)
    assert not tops(names) & HEAVY
    assert not {name for name in names if name.startswith("agentkv_runtime._core")}


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_runtime_does_not_know_the_sdk(path: Path) -> None:
    names = imported(path)
    assert "agentkv" not in tops(names)
    part = path.relative_to(ROOT / "runtime" / "agentkv_runtime").parts[0]
    if part not in HEAVY_PARTS:
        assert not tops(names) & HEAVY
    else:
        others = {name.split(".")[1] for name in names if name.startswith("agentkv_runtime.")} & HEAVY_PARTS
        assert others <= SHARED[part] | {part}


@pytest.mark.parametrize("path", CPP, ids=lambda path: str(path.relative_to(ROOT)))
def test_cpp_includes_point_down(path: Path) -> None:
    part = path.relative_to(ROOT / "cpp").parts[0]
    text = path.read_text(encoding="utf-8")
    for included in re.findall(r'^\s*#include\s+"([^"]+)"', text, re.MULTILINE):
        target = included.split("/")[0]
        assert "mlx" not in included.split("/") or "mlx" in path.parts, f"{path.name} includes {included}"
        assert target in ALLOWED[part] | {part}, f"{path.name} includes {included}"
    libraries = re.findall(r"^\s*#include\s+<([^>]+/[^>]+)>", text, re.MULTILINE)
    for library in {name.split("/")[0] for name in libraries} - {"sys"}:
        expected = {
            "nanobind": "bindings",
            "executorch": "executorch",
            "mlx": "mlx",
            "c10": "executorch",
            "sanitizer": "executorch",  # its pool has no instrumentation
        }
        assert library in expected, f"{path.name} includes <{library}/...>"
        # MLX is known to the folders of that name alone, wherever they lie.
        assert expected[library] in path.relative_to(ROOT / "cpp").parts, f"{path.name} of {part} includes <{library}>"


# Headers of systems; `cpuid.h` is the compiler's, for what the system decides.
SYSTEM = re.compile(r"#include <((sys|mach|linux)/.*|(unistd|fcntl|pthread|sched|dlfcn|signal|windows|io|cpuid)\.h)>")


def test_only_the_platform_calls_the_system() -> None:
    assert all(path.parent.name == "platform" for path in CPP if SYSTEM.search(path.read_text(encoding="utf-8")))


def test_importing_the_sdk_and_the_runtime_loads_no_torch() -> None:
    script = (
        "import sys, agentkv.cli, agentkv_runtime.programs, agentkv_runtime.export\n"
        "from agentkv import *\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_source_was_looked_at() -> None:
    assert len(SDK) > 5
    assert len(RUNTIME) > 10
    assert {path.relative_to(ROOT / "cpp").parts[0] for path in CPP} >= {
        "core",
        "cpu",
        "engine",
        "spec",
        "executorch",
        "bindings",
    }


def test_the_way_of_one_token_is_as_drawn() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## The way of one token")[1].split("```")[1]
    steps = [line.split()[:2] for line in section.strip().splitlines()]
    assert 15 <= len(steps) <= 20
    for path, name in steps:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{path} has no {name}"


def code_lines(path: Path) -> int:
    """Lines of a Python file but for docstrings, comments, imports and blanks."""
    text = path.read_text(encoding="utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(n not in left_out and bool(line.strip()) and not line.strip().startswith("#") for n, line in lines)


def test_no_module_is_too_long_to_read() -> None:
    long = {str(path.relative_to(ROOT)): code_lines(path) for path in (*SDK, *RUNTIME)}
    assert {path: lines for path, lines in long.items() if lines > 400} == {}
    long = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in CPP}
    assert {path: lines for path, lines in long.items() if lines > 350} == {}


@pytest.mark.parametrize("path", [*SDK, *RUNTIME], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_is_too_long_to_read(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_text = ast.get_docstring(node) is not None
            body = node.body[has_text:] or node.body
            assert (body[-1].end_lineno or 0) - body[0].lineno < 60, f"{node.name} at {path.name}:{node.lineno}"


def loaded_with(path: Path, root: Path) -> set[str]:
    """The modules of its own package that importing a file imports: not those for type checkers or inside functions."""
    package = path.relative_to(root).parent.parts
    return _names(imports_in(package, ast.parse(path.read_text(encoding="utf-8")).body))


@pytest.mark.parametrize(("files", "root"), [(SDK, ROOT), (RUNTIME, ROOT / "runtime")], ids=["sdk", "runtime"])
def test_imports_go_in_no_circle(files: list[Path], root: Path) -> None:
    def name(path: Path) -> str:
        parts = path.relative_to(root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    modules = {name(path): path for path in files if path.name != "__init__.py"}
    graph = {module: loaded_with(path, root) & modules.keys() - {module} for module, path in modules.items()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(modules)  # CycleError names a circle


def test_nothing_that_a_run_leaves_lies_at_the_top() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert {path.split("/")[0] for path in tracked.stdout.split("\0") if path} <= TOP
