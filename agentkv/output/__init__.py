"""Constraints on the output of a generation.

gen = await branch.generate(output=kv.Regex("[0-9]{4}"))
"""

from .constraint import Constraint
from .grammar import Grammar
from .json_schema import JsonSchema
from .regex import Regex

__all__ = ["Constraint", "Grammar", "JsonSchema", "Regex"]
