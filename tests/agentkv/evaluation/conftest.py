"""Cases as documents, and BFCL's data in small. All tests run on asyncio, as uvicorn does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.evaluation.cases import Case

WEATHER = {
    "name": "get_weather",
    "description": "Weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def document(**changes: Any) -> dict[str, Any]:
    """A case whose tools do nothing."""
    case = {"id": "a", "category": "weather", "question": "Weather in Oslo?", "tools": [WEATHER]}
    return {**case, "expected": {"calls": [{"get_weather": {"city": ["Oslo"]}}]}, **changes}


def in_world(**changes: Any) -> dict[str, Any]:
    """A case in a world."""
    case = document(world={"weather": {"Oslo": {"celsius": 3, "sky": "rainy"}}, "notes": {}})
    del case["tools"]
    return {**case, "expected": {"solution": [["get_weather", {"city": "Oslo"}]], "says": [["3"]]}, **changes}


def made(case: dict[str, Any]) -> Case:
    return Case.model_validate(case)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def bfcl(tmp_path: Path) -> Path:
    """A folder as the wheel of bfcl-eval unpacks: five simple cases and five where nothing is to be called."""
    data = tmp_path / "wheel" / "bfcl_eval" / "data"
    (data / "possible_answer").mkdir(parents=True)
    function = {
        "name": "sky.weather",
        "description": "Weather in a city.",
        "parameters": {
            "type": "dict",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "float", "optional": True},
                "hours": {"type": "tuple", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    }
    for category in ("simple_python", "irrelevance"):
        asked = [
            {"id": f"{category}_{at}", "question": [[{"role": "user", "content": f"Weather {at}?"}]]} for at in range(5)
        ]
        lines = [json.dumps({**case, "function": [function]}) for case in asked]
        (data / f"BFCL_v4_{category}.json").write_text("\n".join(lines))
    truth = [
        {"id": f"simple_python_{at}", "ground_truth": [{"sky.weather": {"city": [str(at)], "days": [1, ""]}}]}
        for at in range(5)
    ]
    answers = data / "possible_answer" / "BFCL_v4_simple_python.json"
    answers.write_text("\n".join(map(json.dumps, truth)))
    return tmp_path
