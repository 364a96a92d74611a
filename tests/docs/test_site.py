"""The site builds without a warning, needs nothing from elsewhere, and has everything that is public."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from mkdocstrings import Inventory

import agentkv as kv
from agentkv.cli import app
from tests.docs.blocks import DOCS

ROOT = DOCS.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loading = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
    found = {path.name: loading.findall(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert {name: loads for name, loads in found.items() if loads} == {}


def public_names() -> Iterator[str]:
    modules: list[types.ModuleType] = [kv]
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if value is kv.adapters:
                continue  # its modules import all of a framework's names; their pages name what is theirs
            if isinstance(value, types.ModuleType):
                modules.append(value)
            else:
                yield f"{module.__name__}.{name}"


def test_everything_public_is_in_the_reference(site: Path) -> None:
    with (site / "objects.inv").open("rb") as inventory:
        documented = set(Inventory.parse_sphinx(inventory))
    assert [name for name in public_names() if name not in documented] == []


def commands() -> Iterator[tuple[str, str]]:
    waiting = [("agentkv", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        waiting += [(f"{name} {sub}", child) for sub, child in getattr(command, "commands", {}).items()]
        for parameter in command.params:
            yield name, next((option for option in parameter.opts if option.startswith("--")), "")


def test_every_option_of_the_command_line_is_in_the_reference() -> None:
    sections = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8").split("\n## ")
    text = {section.split("`")[1]: section for section in sections[1:]}
    for name, option in commands():
        described = [section for title, section in text.items() if title.startswith(name)]
        assert any(f"`{option}`" in section or option in section for section in described), f"{name} {option}"
