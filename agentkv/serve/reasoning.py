"""How much a model is to reason, as clients say it, and as a template and a generation take it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from .._context.thinking import template_switches
from .._model.generate_options import Thinking

EFFORTS: Mapping[str, Thinking] = {
    "none": False,
    "minimal": False,
    "low": 512,
    "medium": 2048,
    "high": True,
    "xhigh": True,
    "max": True,
}
"""What each word for effort comes to, where the chat template has no such words of its own."""

_EFFORT = "reasoning_effort"


def reasoning_of(thinking: Thinking, effort: str | None, known: Container[str]) -> tuple[Thinking, dict[str, Any]]:
    """How much a generation may reason, and variables for a template that knows these: one that knows efforts was
    trained on them, and keeps to them by itself."""
    meant = EFFORTS[effort] if thinking is None and effort is not None else thinking
    switches = template_switches(meant, known)
    if effort is None or _EFFORT not in known:
        return meant, switches
    return thinking if meant else False, {**switches, _EFFORT: effort}
