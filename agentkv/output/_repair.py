"""Repair of malformed JSON schemas: parts that their draft does not allow are left out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._schema_checks import MAPS

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_MOST_ROUNDS = 16  # faults within a part show once the part itself is right


def draft_of(schema: Mapping[str, Any]) -> type[Validator]:
    """Validator class of the draft that a schema names; of 2020-12 where it names no known one."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    named = schema.get("$schema")
    known: dict[str, Any] = {"$schema": named} if isinstance(named, str) else {}
    draft: type[Validator] = validator_for(known, default=Draft202012Validator)
    return draft


def well_formed(schema: Mapping[str, Any], *, patterns: bool = False) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A copy without the parts that its draft does not allow, such as `"required": null`, and their keywords.

    With `patterns` also without regular expressions that Python's `re` cannot read.
    """
    draft = draft_of(schema)
    checker = draft(draft.META_SCHEMA, format_checker=draft.FORMAT_CHECKER if patterns else None)
    made, gone = copy.deepcopy(dict(schema)), dict[str, None]()
    for _ in range(_MOST_ROUNDS):
        wrong = {tuple(error.absolute_path) for error in checker.iter_errors(made)} - {()}
        if not wrong:
            return made, tuple(gone)
        for path in sorted(wrong, key=len):
            gone |= _taken_out(made, path)
    return {}, tuple(schema)


def _taken_out(schema: dict[str, Any], path: tuple[str | int, ...]) -> dict[str, None]:
    """Deletes the value at a path, or the list around it, as entries depend on each other. Returns its keyword.

    A malformed schema of a named property becomes True, which allows anything.
    """
    while isinstance(path[-1], int):
        path = path[:-1]
    holder: Any = schema
    named = False  # whether the holder is a map of names, not a schema
    try:
        for part in path[:-1]:
            holder, named = holder[part], not named and part in MAPS
        if named:
            holder[path[-1]] = True
        else:
            del holder[path[-1]]
    except (KeyError, IndexError, TypeError):  # it is gone with what it stood in
        return {}
    return {str(path[-2 if named else -1]): None}
