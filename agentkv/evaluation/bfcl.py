"""Cases of the Berkeley Function Calling Leaderboard, from the data of the package `bfcl-eval`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._types.errors import InvalidInput
from .cases import Case, check_categories, chosen

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
"""Categories that are run by default."""

LIVE = tuple(
    f"live_{name}" for name in ("simple", "multiple", "parallel", "parallel_multiple", "irrelevance", "relevance")
)

# Categories without expected calls: whether there must be any call.
_CALLED = {"irrelevance": False, "live_irrelevance": False, "live_relevance": True}

# JSON schema's names of types by BFCL's.
_TYPES = {
    "any": "string",
    "dict": "object",
    "float": "number",
    "tuple": "array",
}


def read_bfcl(folder: Path, categories: Sequence[str], n: int) -> list[Case]:
    """Reads `n` cases of each category, evenly spaced; no categories means `CATEGORIES`.

    Raises InvalidInput for a folder without such data, an unknown category, and damaged data.
    """
    data = _data(folder)
    if data is None:
        raise InvalidInput(
            f"{folder} has no cases of BFCL; `pip download --no-deps bfcl-eval`, unzip the wheel, and give its folder"
        )
    check_categories(categories, (*CATEGORIES, *LIVE))
    try:
        return [case for name in categories or CATEGORIES for case in chosen(_cases(data, name), (), n)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidInput(f"{data} is not as BFCL's version 4 has it: {error!r}") from error
    except FileNotFoundError as error:
        raise InvalidInput(f"{error.filename} is missing; unzip the whole wheel of bfcl-eval") from error


def _data(folder: Path) -> Path | None:
    found = (path.parent for path in folder.rglob(f"BFCL_v4_{CATEGORIES[0]}.json"))
    return next((path for path in found if path.name != "possible_answer"), None)


def _cases(data: Path, category: str) -> Iterator[Case]:
    name = f"BFCL_v4_{category}.json"
    judged = category in _CALLED
    right = {} if judged else {line["id"]: line["ground_truth"] for line in _lines(data / "possible_answer" / name)}
    for line in _lines(data / name):
        if not line["function"]:
            continue  # some of live_irrelevance: without tools there is nothing to judge
        yield Case.model_validate(
            {
                "id": line["id"],
                "category": category,
                "messages": line["question"][0],
                "tools": [_tool(function) for function in line["function"]],
                "expected": {"called": _CALLED[category]} if judged else {"calls": [*map(_call, right[line["id"]])]},
            }
        )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": _name(function["name"]),
        "description": function["description"],
        "parameters": _schema(function["parameters"]),
    }


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {_name(name): arguments for name, arguments in call.items()}


def _name(name: str) -> str:
    """Replaces characters that a server might refuse in a tool's name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _schema(node: Any) -> Any:
    if isinstance(node, list):
        return [_schema(value) for value in node]
    if not isinstance(node, dict):
        return node
    schema = {key: _schema(value) for key, value in node.items() if key != "optional"}
    if isinstance(schema.get("type"), str):
        schema["type"] = _TYPES.get(schema["type"], schema["type"])
    return schema
