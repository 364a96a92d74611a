"""Versions of the packages that made a program. Imports no torch."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

__all__ = ["tool_versions"]


def tool_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the installed ones of these packages."""
    found: dict[str, str] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
