"""References of JSON schemas that no value ends: `{"$ref": "#"}`, or a list whose items must be such lists."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, TypeVar
from urllib.parse import unquote

from ._subschemas import subschemas

T = TypeVar("T")
_MOST_ROUNDS = 32  # each goes over the whole schema; what is not settled then is let through


def endless_reference(schema: dict[str, Any]) -> str | None:
    """A `$ref` that leads back to itself whichever value is written."""
    referred = {_of(inner, "$ref", str) for inner in subschemas(schema)} - {""}
    targets = {reference: _pointed(schema, reference) for reference in sorted(referred)}
    for _ in range(_MOST_ROUNDS):
        ending = [reference for reference, target in targets.items() if _ends(target, targets.keys())]
        if not ending:
            break
        for reference in ending:
            del targets[reference]
    else:
        return None
    return next((f"$ref: {reference} leads back to itself, and its values never end" for reference in targets), None)


def _ends(schema: Any, endless: AbstractSet[str]) -> bool:
    """Has it a value that ends, without the references that are not known to have one?"""
    if not isinstance(schema, dict):
        return True
    choices = [options for key in ("anyOf", "oneOf") if (options := _of(schema, key, list))]
    return (
        _of(schema, "$ref", str) not in endless
        and all(_ends(part, endless) for part in _needed(schema))
        and all(any(_ends(option, endless) for option in options) for options in choices)
    )


def _needed(schema: dict[str, Any]) -> list[Any]:
    """The schemas inside that every value has a value of."""
    needed = list(_of(schema, "allOf", list))
    if schema.get("type") == "object":
        properties = _of(schema, "properties", dict)
        needed += [properties.get(name) for name in _of(schema, "required", list) if isinstance(name, str)]
    if schema.get("type") == "array":
        prefix, least = _of(schema, "prefixItems", list), max(0, _of(schema, "minItems", int))
        needed += prefix[:least] + [schema.get("items")] * (least > len(prefix))
    return needed


def _of(schema: dict[str, Any], key: str, kind: type[T]) -> T:
    """A keyword's value; an empty one where it is of another kind, as in definitions that nobody refers to."""
    value = schema.get(key)
    return value if isinstance(value, kind) else kind()


def _pointed(schema: Any, reference: str) -> Any:
    """What a JSON pointer (RFC 6901) points to; None for what is elsewhere."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            schema = schema[int(key)] if isinstance(schema, list) else schema[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return schema
