"""Paths of what drafts."""

from __future__ import annotations

from pathlib import Path

from .._errors import InvalidInput


def checked_path(path: object) -> Path:
    """A path; whether anything is there shows when a Context opens it. Raises InvalidInput."""
    if not isinstance(path, str | Path) or not str(path):
        raise InvalidInput(f"path is {path!r}, but it must be the path of a model folder")
    return Path(path).expanduser()
