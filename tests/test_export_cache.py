"""The cache of exports that test processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export_cache import KEPT_KEYS, ROOT, SOURCES, ExportCache


def test_several_processes_sweep_at_once(tmp_path: Path) -> None:
    (tmp_path / "taken").symlink_to(tmp_path / "by another")  # it is listed, and is no more when it is looked at
    for number in range(KEPT_KEYS + 1):
        (tmp_path / str(number)).mkdir()
    cache = ExportCache(tmp_path)
    assert sum(folder.is_dir() for folder in tmp_path.iterdir()) == KEPT_KEYS
    assert cache.get("one", Path.mkdir).is_dir()


@pytest.mark.parametrize("pattern", SOURCES)
def test_what_exports_depend_on_is_where_the_key_looks(pattern: str) -> None:
    assert any(path.is_file() for path in ROOT.glob(pattern))
