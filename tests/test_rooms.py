"""The rooms of agentkv: what each is made of points down, and nobody reads another room's private attributes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.imports import imports_in

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "agentkv"

# From the bottom up. Rooms on one line know nothing of each other.
ORDER = (
    ("_types",),
    ("_aio",),
    ("_chat",),
    ("_documents",),
    ("_console", "workspaces"),
    ("_engine",),
    ("output",),
    ("models",),
    ("spec",),
    ("_model",),
    ("remote",),
    ("_state",),
    ("_storage",),
    ("_prefixes",),
    ("_context",),
    ("agents",),
    ("journal", "tools"),
    ("sync",),
    ("patterns", "overflow", "formats"),
    ("trace", "testing"),
    ("serve",),
    ("terminal", "adapters"),
    ("_bench",),
    ("evaluation",),
    ("cli",),
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
# `Context.open(...).sync()` and `Context.open(journal="runs.db")` are public.
EXCEPTIONS = {
    (module, target)
    for module in ("_context.context", "_context.opening")
    for target in ("sync.context", "journal.journal")
}
# The doors of a Context to other rooms: see `_context/handle.py`.
ROOTS = {"__init__", "__main__"}


class Import(NamedTuple):
    """One name that a module imports, wherever in it."""

    source: str
    target: str
    line: int


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@functools.cache
def modules() -> dict[str, Path]:
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def room_of(module: str) -> str:
    return module.split(".")[0]


def imports_of(module: str) -> Iterator[Import]:
    """Of modules of agentkv: at load time, for type checkers, inside functions."""
    package = ("agentkv", *modules()[module].relative_to(PACKAGE).parent.parts)
    for each in imports_in(package, ast.walk(tree_of(module))):
        if each.module.split(".")[0] == "agentkv":
            inside, base = (name.removeprefix("agentkv").removeprefix(".") for name in (each.inside, each.module))
            yield Import(module, (inside if inside in modules() else base) or "__init__", each.line)


def test_every_module_has_a_room() -> None:
    assert {room_of(module) for module in modules()} - ROOTS == set(RANK)


@pytest.mark.parametrize("room", RANK)
def test_what_a_room_is_made_of_points_down(room: str) -> None:
    up = [
        found
        for module in modules()
        if room_of(module) == room
        for found in imports_of(module)
        if room_of(found.target) != room
        and (found.source, found.target) not in EXCEPTIONS
        and RANK.get(room_of(found.target), len(ORDER)) >= RANK[room]
    ]
    assert up == []


def test_the_exceptions_are_needed() -> None:
    found = {(each.source, each.target) for source, _ in EXCEPTIONS for each in imports_of(source)}
    assert found >= EXCEPTIONS


SELF = ("self", "cls")


@functools.cache
def attributes() -> dict[str, set[str]]:
    """Which rooms have an underscored attribute of some name of their own: assigned to self, a slot, a method."""
    rooms: dict[str, set[str]] = {}
    for module in modules():
        for node in ast.walk(tree_of(module)):
            for name in _own_names(node):
                rooms.setdefault(name, set()).add(room_of(module))
    return rooms


def _own_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                yield item.name
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                yield item.target.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in SELF:
        yield node.attr


# Attributes of libraries' objects, and of tuples and enums.
NOT_OURS = {"_asdict", "_replace", "_fields", "_make", "_value_", "_name_", "_missing_"}


@pytest.mark.parametrize("room", RANK)
def test_no_room_reads_private_attributes_of_another(room: str) -> None:
    """By their names: one that this room has none of, and another has."""
    read = [
        f"{module}:{node.lineno} .{node.attr}"
        for module in modules()
        if room_of(module) == room
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in NOT_OURS
        and room not in attributes().get(node.attr, {room})
    ]
    assert read == []


def test_no_class_is_a_mixin() -> None:
    """A method that only raises NotImplementedError stands for another class's."""
    stubs = [
        f"{module}:{node.lineno} {node.name}"
        for module in modules()
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(isinstance(line, ast.Raise) and "NotImplementedError" in ast.dump(line) for line in node.body)
    ]
    assert stubs == []


# Public classes that a framework, or a place of the SDK, gives this name.
TWICE = {"ChatModel", "Model"}


def test_a_class_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = {}
    for module in modules():
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    assert {name: where for name, where in found.items() if len(where) > 1 and name not in TWICE} == {}
