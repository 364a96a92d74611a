"""The description that the server publishes of itself."""

from __future__ import annotations

import jsonschema
import pytest

from agentkv.serve.http.openapi import openapi
from agentkv.serve.routes import BODIES, ENDPOINTS

from .conftest import SETTINGS, serving

pytestmark = pytest.mark.anyio


async def test_it_describes_every_endpoint_and_its_body() -> None:
    async with serving() as site:
        described = (await site.http.get("/openapi.json")).json()
    assert described == openapi(ENDPOINTS, BODIES, SETTINGS.names)
    said = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert said == set(ENDPOINTS)
    for methods in described["paths"].values():
        for method, operation in methods.items():
            assert operation["summary"]
            read = method in ("post", "put") and operation["operationId"] != "refuse_embeddings"
            assert read == ("requestBody" in operation)
    assert len({o["operationId"] for m in described["paths"].values() for o in m.values()}) == len(ENDPOINTS)


@pytest.mark.parametrize(
    ("docstring", "summary"),
    [
        ("Closes a branch.", "Closes a branch."),
        ("Closes a branch, ends what it\n    generates. Frees its cells.", "Closes a branch, ends what it generates."),
        ("`GET .../x`: items of `a.b`, v1.5 on.\n\n    Newest first.", "`GET .../x`: items of `a.b`, v1.5 on."),
        ("Lists branches\n\n    by name.", "Lists branches"),
        ("", ""),
    ],
)
def test_the_first_sentence_of_a_docstring_is_the_summary(docstring: str, summary: str) -> None:
    def endpoint() -> None: ...

    endpoint.__doc__ = docstring
    described = openapi({("GET", "/x"): endpoint}, {}, ["nano"])
    assert described["paths"]["/x"]["get"]["summary"] == summary


def test_what_it_says_of_a_chat_request_is_what_is_taken() -> None:
    described = openapi(ENDPOINTS, BODIES, SETTINGS.names)
    schema = {**described["components"]["schemas"]["ChatRequest"], "components": described["components"]}
    right = {"model": "nano", "messages": [{"role": "user", "content": "x"}], "temperature": 1}
    jsonschema.validate(right, schema)
    for wrong in (
        {"temperature": 3},
        {"model": "other"},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"frobs": 1},
        {"messages": []},
        {"tools": [{"type": "x"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(right | wrong, schema)
