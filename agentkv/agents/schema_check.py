"""The check of arguments against a JSON schema, for tools that come with one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .._types.log import log
from ..output._repair import draft_of, well_formed
from ..output._schema_checks import subschemas
from .parameters import InvalidArguments

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

_MOST_TOLD = 4  # faults: the model does not mend more at once
_LONGEST = 200  # characters of one


class SchemaCheck:
    """Validates arguments against a JSON schema, whether or not a grammar constrained them."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self._name = name
        self._schema = schema

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments unchanged. Raises InvalidArguments, which lists the faults."""
        values = dict(arguments)
        try:
            faults = sorted(self._validator.iter_errors(values), key=lambda error: error.json_path)
        except Exception as error:  # a schema that leads back to itself, or that `re` runs out of memory with
            log.warning(
                "arguments of a tool cannot be checked", tool=self._name, error=f"{type(error).__name__}: {error}"
            )
            return values
        if faults:
            raise InvalidArguments("; ".join(map(_said, faults[:_MOST_TOLD])))
        return values

    @cached_property
    def _validator(self) -> Validator:
        """Validator of the well-formed parts of the schema; references that do not resolve within it are dropped."""
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012, specification_with

        schema, wrong = well_formed(self._schema, patterns=True)
        draft = draft_of(schema)
        kind = specification_with(str(schema.get("$schema")), default=DRAFT202012)
        resolver = Registry().resolver_with_root(kind.create_resource(schema))
        for part, key in itertools.product(list(subschemas(schema)), ("$ref", "$dynamicRef")):
            try:
                resolver.lookup(str(part.get(key, "#")))
            except Unresolvable:
                del part[key]
                wrong = (*wrong, key)
        if wrong:
            log.warning("a tool's schema is no JSON Schema", tool=self._name, not_checked=list(wrong))
        return draft(schema, registry=Registry(), format_checker=draft.FORMAT_CHECKER)


def _said(fault: ValidationError) -> str:
    where = fault.json_path.removeprefix("$").lstrip(".")
    text = f"{where}: {fault.message}" if where else fault.message
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
