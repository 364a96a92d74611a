"""The formats that are known by name: one file per family of models."""

from __future__ import annotations

from collections.abc import Mapping

from agentkv_runtime.formats.families import hermes, plain
from agentkv_runtime.formats.families.family import Family

__all__ = ["FAMILIES", "Family"]

FAMILIES: Mapping[str, Family] = {family.name: family for family in (hermes.HERMES, hermes.NANO, plain.PLAIN)}
"""In the order in which they are tried."""
