"""The code blocks of a page of the site, in order."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_INCLUDED = re.compile(r'--8<-- "([^"]+)"\n')
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """One block: what it is written in, its text, and what the page says that it prints."""

    page: Path
    line: int
    language: str
    title: str | None
    code: str
    output: str | None
    included: bool  # its text stands in a file of the repository

    @property
    def where(self) -> str:
        """The page and the line at which the code begins."""
        return f"{self.page.relative_to(DOCS.parent)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page; a `text` block that follows another at once is what that one prints."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        language, _, attributes = match["info"].strip(" {.}").partition(" ")
        code = textwrap.dedent(match["code"])
        title = _TITLE.search(attributes)
        if language == "text" and not title and found and not text[end : match.start()].strip():
            found[-1] = replace(found[-1], output=code)
        else:
            included = _INCLUDED.fullmatch(code)
            if included:
                code = (DOCS.parent / included[1]).read_text(encoding="utf-8")
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(page, line, language, title[1] if title else None, code, None, bool(included)))
        end = match.end()
    return found


def pages() -> list[Path]:
    """Every page of the site."""
    return sorted(DOCS.rglob("*.md"))
