"""A plugin of pytest: the native module is the one that is built with ThreadSanitizer, and a test in which it finds a
race fails with the report."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPORTS = Path(os.environ["AGENTKV_SANITIZER_REPORTS"])
NAME = "agentkv_runtime._core"
WIDEST = 200  # letters of a line of a report: names of what templates make take pages


def _load(path: str) -> None:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_load(os.environ["AGENTKV_SANITIZED_MODULE"])


def reported(seen: dict[Path, int]) -> str:
    """What came into the reports of this process and its children since; `seen` says how far they were read."""
    new = ""
    for path in sorted(REPORTS.glob("report.*")):
        text = path.read_text(errors="replace")
        new += "\n".join(line[:WIDEST] for line in text[seen.get(path, 0) :].splitlines())
        seen[path] = len(text)
    return new


_seen: dict[Path, int] = {}


@pytest.fixture(autouse=True)
def no_race() -> Iterator[None]:
    yield
    found = reported(_seen)
    if found:
        pytest.fail(found, pytrace=False)
