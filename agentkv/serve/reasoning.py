"""Amount of reasoning, from the words of clients to template variables and generation options."""

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
"""Thinking option of each effort, for chat templates without efforts of their own."""

_EFFORT = "reasoning_effort"


def reasoning_of(thinking: Thinking, effort: str | None, known: Container[str]) -> tuple[Thinking, dict[str, Any]]:
    """Returns the thinking option of the generation, and variables for the template. A template that knows efforts is
    of a model trained on them, so that the effort sets no token budget."""
    meant = EFFORTS[effort] if thinking is None and effort is not None else thinking
    switches = template_switches(meant, known)
    if effort is None or _EFFORT not in known:
        return meant, switches
    return thinking if meant else False, {**switches, _EFFORT: effort}
