"""README.md and ARCHITECTURE.md stay short, and what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agentkv", "runtime", "cpp", "tests", "docs", "examples")
INSIDE = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "internals").glob("*.md"))]
_PATH = re.compile(r"`([\w.][\w./-]*\.(?:py|pyi|h|cpp|md|ts)|(?:\w+/)+\w*)`")  # of a file, or of a folder
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize(("name", "most"), [("README.md", 110), ("ARCHITECTURE.md", 250)])
def test_a_front_page_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= most


def test_lines_of_the_architecture_fit_a_screen() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", INSIDE, ids=lambda page: page.name)
def test_every_path_that_is_named_is_there(page: Path) -> None:
    """A path may leave out the folders that its page says it lies in."""
    there = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    named = {path.rstrip("/") for path in _PATH.findall(page.read_text(encoding="utf-8"))}
    root = {path.name for path in ROOT.iterdir()}
    assert {path for path in named - root if not any(one.endswith(f"/{path}") for one in there)} == set()


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    targets = _LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_topic_of_decisions_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[.+\]\((.+)\) \|", index, re.MULTILINE)) == sorted(
        path.name for path in folder.glob("*.md") if path.name != "index.md"
    )
