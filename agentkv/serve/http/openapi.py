"""OpenAPI 3.1 description of the server."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from .body import Body

_REFERENCE = "#/components/schemas/{model}"


def openapi(
    endpoints: Mapping[tuple[str, str], Callable[..., Any]], bodies: Mapping[Any, type[Body]], models: Sequence[str]
) -> dict[str, Any]:
    """Makes the description of all endpoints.

    Args:
        endpoints: by method and path; the first sentence of a docstring becomes the summary.
        bodies: body class of each endpoint that reads one.
        models: names that `model` of a body may have.
    """
    known, definitions = models_json_schema([(body, "validation") for body in bodies.values()], ref_template=_REFERENCE)
    schemas = definitions.get("$defs", {})
    for schema in schemas.values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"]["enum"] = list(models)
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), endpoint in endpoints.items():
        operation = _operation(path, endpoint)
        if endpoint in bodies:
            schema = known[bodies[endpoint], "validation"]
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentkv", "version": importlib.metadata.version("agentkv-sdk")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, endpoint: Callable[..., Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", path)
    return {
        "operationId": endpoint.__name__,
        "summary": _first_sentence(endpoint.__doc__ or ""),
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "responses": {
            "200": {"description": "What was asked for; server-sent events where `stream` is true."},
            "4XX": {"description": "An error in the shape of the path's protocol."},
        },
    }


def _first_sentence(text: str) -> str:
    """The first sentence of a docstring on one line: of its first paragraph, up to a full stop that is followed by a
    space."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + stop.strip()
