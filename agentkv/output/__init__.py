"""Constraints: what a generation may say.

gen = await branch.generate(output=kv.Regex("[0-9]{4}"))
"""

from .json_schema import JsonSchema
from .regex import Regex

__all__ = ["JsonSchema", "Regex"]
