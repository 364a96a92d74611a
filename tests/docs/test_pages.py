"""Every code block of every page does what the page says, on nano."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, Block, blocks_of, pages
from tests.docs.reader import ROOT, Reader
from tests.export_cache import ExportCache

EXAMPLES = ROOT / "examples"
WITHOUT_CODE = {"reference", "internals", "decisions", "models.md", "features.md", "limits.md", "performance.md"}
PAGES = [page for page in pages() if page.relative_to(DOCS).parts[0] not in WITHOUT_CODE]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


def runs(block: Block) -> bool:
    return block.language in ("python", "console")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export_cache: ExportCache) -> Path:
    """Where the reader works. It holds `hf-model`, a Hugging Face folder, and the `examples`, which may be imported."""
    monkeypatch.setenv("AGENTKV_HOME", str(export_cache.get("docs home", Path.mkdir)))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / "hf-model").symlink_to(EXAMPLES / "nano" / "weights")
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("weights", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(tmp_path))
    for example in EXAMPLES.glob("*.py"):  # another page may have a module of that name
        sys.modules.pop(example.stem, None)
    return tmp_path


@pytest.mark.anyio
@pytest.mark.parametrize("page", PAGES, ids=name)
async def test_what_a_page_shows_is_so(page: Path, folder: Path, export_cache: ExportCache, anyio_backend: str) -> None:
    blocks = blocks_of(page)
    if anyio_backend == "trio" and any("asyncio" in block.code for block in blocks if runs(block)):
        pytest.skip("the page is about asyncio")
    await Reader(folder, export_cache).read(blocks)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_page_has_code_that_runs(page: Path) -> None:
    assert any(runs(block) for block in blocks_of(page))


@pytest.mark.parametrize("page", [page for page in pages() if page.parent.name != "reference"], ids=name)
def test_every_page_begins_with_words(page: Path) -> None:
    """What it is for, before any code, table or heading."""
    title, first, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert not first.startswith(("```", "#", "|", "!", "- ", "<")), first
