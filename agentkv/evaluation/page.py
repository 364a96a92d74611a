"""HTML page of the wrong cases, a single self-contained file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from .outcome import Called
from .run import CaseResult
from .table import COLUMNS, scores
from .worlds import tools_of


def page(title: str, facts: Mapping[str, Any], results: Sequence[CaseResult]) -> str:
    """HTML page that shows messages, tools, expected and actual outcome of each wrong case."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"json": _json, "call": _call}
    template = environment.from_string(
        resources.files(__package__).joinpath("assets", "page.html").read_text(encoding="utf-8")
    )
    wrong = [result for result in results if not result.verdict.right]
    categories = {
        name: [result for result in wrong if result.case.category == name]
        for name in dict.fromkeys(result.case.category for result in wrong)
    }
    rows = [score.row() for score in scores(results)]
    return template.render(
        title=title, facts=facts, columns=COLUMNS, rows=rows, categories=categories, tools=_tools, wrong=len(wrong)
    )


def _tools(result: CaseResult) -> Sequence[Mapping[str, Any]]:
    case = result.case
    told = case.tools if case.world is None else tools_of(case.world)
    return [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in told]


def _call(call: Called) -> str:
    came = f" → {_json(call.result)}" if call.error is None else f" → error: {call.error}"
    return f"{call}{came}{f' (rescued from {call.rescued})' if call.rescued else ''}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)
