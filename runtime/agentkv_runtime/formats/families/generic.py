"""The format of models that were trained on none: a list of calls as JSON in a code block."""

from agentkv_runtime.formats.families.family import Family
from agentkv_runtime.formats.fenced import FENCED

__all__ = ["GENERIC"]

GENERIC = Family("generic", spelling=FENCED)
