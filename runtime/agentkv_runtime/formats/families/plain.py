"""Models without calls of their own."""

from agentkv_runtime.formats.families.family import Family

__all__ = ["PLAIN"]

PLAIN = Family("plain")
