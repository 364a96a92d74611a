"""Results as a JSON document, for programs and for comparing runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .run import CaseResult
from .table import scores


def report(facts: Mapping[str, Any], results: Sequence[CaseResult]) -> str:
    """JSON document of the run's `facts`, a score for each category, and the outcome of each case."""
    document = {
        **facts,
        "scores": [asdict(score) for score in scores(results)],
        "cases": [_case(result) for result in results],
    }
    return json.dumps(document, indent=1, default=str, ensure_ascii=False)


def _case(result: CaseResult) -> dict[str, Any]:
    case, outcome, verdict = result
    return {
        "id": case.id,
        "category": case.category,
        "right": verdict.right,
        "why": verdict.why,
        "expected": case.expected.model_dump(exclude_unset=True),
        **asdict(outcome),
    }
