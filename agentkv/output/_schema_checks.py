"""Checks of JSON schemas before anything is generated, each of which names the keyword.

They find keywords that a grammar does not enforce, endless references, and schemas that llguidance itself refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote

from ._llguidance import llguidance

MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalItems", "additionalProperties")


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields a schema and every schema inside it, as far as they are objects. The caller may change them."""
    pending = [schema]
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        pending += [schema.get(key) for key in _SINGLE]
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                pending += schema[key]
        for key in MAPS:
            if isinstance(schema.get(key), dict):
                pending += schema[key].values()


T = TypeVar("T")
_MOST_ROUNDS = 32  # each goes over the whole schema; references that are not settled by then pass


def endless_reference(schema: dict[str, Any]) -> str | None:
    """Fault of a `$ref` that leads back to itself for every value; None without one."""
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
    """Returns whether the schema has a finite value that uses none of the `endless` references."""
    if not isinstance(schema, dict):
        return True
    choices = [options for key in ("anyOf", "oneOf") if (options := _of(schema, key, list))]
    return (
        _of(schema, "$ref", str) not in endless
        and all(_ends(part, endless) for part in _needed(schema))
        and all(any(_ends(option, endless) for option in options) for options in choices)
    )


def _needed(schema: dict[str, Any]) -> list[Any]:
    """Inner schemas that every value of the schema has a value for."""
    needed = list(_of(schema, "allOf", list))
    if schema.get("type") == "object":
        properties = _of(schema, "properties", dict)
        needed += [properties.get(name) for name in _of(schema, "required", list) if isinstance(name, str)]
    if schema.get("type") == "array":
        prefix, least = _of(schema, "prefixItems", list), max(0, _of(schema, "minItems", int))
        needed += prefix[:least] + [schema.get("items")] * (least > len(prefix))
    return needed


def _of(schema: dict[str, Any], key: str, kind: type[T]) -> T:
    """A keyword's value; an empty one where it is of another type, as in definitions without a reference to them."""
    value = schema.get(key)
    return value if isinstance(value, kind) else kind()


def _pointed(schema: Any, reference: str) -> Any:
    """Target of a JSON pointer (RFC 6901) within the schema; None where there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            schema = schema[int(key)] if isinstance(schema, list) else schema[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return schema


_OPTION = "Enable 'coerce_one_of' option to approximate oneOf with anyOf"  # which is not ours


@lru_cache(maxsize=256)
def refusal(grammar: str) -> str | None:
    """llguidance's reason to refuse a grammar, in one line; None where it accepts it. Needs no tokenizer."""
    reason = llguidance().LLMatcher.validate_grammar(grammar)
    return " ".join(reason.split()).replace(_OPTION, "Use anyOf") or None


_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
_LARGEST_EXACT = 2**53
# The keyword that llguidance's words are about, where they do not name it.
_KEYWORDS = {
    "Unknown format": "format",
    "regex": "pattern",
    "Resource ": "$ref",
    "Pointer ": "$ref",
    "integer range": "minimum or maximum",
    "float range": "minimum or maximum",
    "Invalid type": "type",
}


def refused_keyword(grammar: str) -> str | None:
    """llguidance's reason to refuse a schema's grammar, after the keyword if known; None where it accepts it."""
    reason = refusal(grammar)
    if reason is None:
        return None
    keyword = next((keyword for words, keyword in _KEYWORDS.items() if words in reason), None)
    return f"{keyword}: {reason}" if keyword else reason


def inexact_number(schema: dict[str, Any]) -> str | None:
    """Fault of an integer that llguidance would round, as it computes with doubles; None without one."""
    for inner in subschemas(schema):
        for key in _NUMBERS:
            for number in _integers(inner.get(key)):
                if abs(number) > _LARGEST_EXACT:
                    return f"{key} has {number}, but integers are exact from -2**53 to 2**53 only"
    return None


def repeatable_keys(schema: dict[str, Any]) -> str | None:
    """Fault of a `minProperties` that counts unlisted keys, which a grammar lets repeat; None without one."""
    for inner in subschemas(schema):
        least = inner.get("minProperties", 0)
        if isinstance(least, int) and least > len(_strings(inner, "properties") | _strings(inner, "required")) + 1:
            return f"minProperties is {least}, but keys that `properties` does not list may repeat"
    return None


def _strings(schema: dict[str, Any], key: str) -> set[str]:
    value = schema.get(key)  # of any type: llguidance's refusal comes later
    return {item for item in value if isinstance(item, str)} if isinstance(value, list | dict) else set()


def _integers(value: object) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _integers(item)
