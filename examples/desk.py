"""Nano's own tools, as an agent takes them: what the examples share."""

from __future__ import annotations

from typing import Any

from nano.tools import SYSTEM, TOOLS

import agentkv as kv


def tool(name: str, **options: Any) -> kv.Tool[None, ..., Any]:
    """One of nano's tools; `kv.tool` makes them of functions, these bring the definition that nano was trained on."""
    desk = TOOLS[name]
    return kv.Tool(name, desk.description, desk.definition()["function"]["parameters"], desk.run, **options)


def agent(*names: str, **options: Any) -> kv.Agent[None, str]:
    """Nano with some of its tools."""
    return kv.Agent(SYSTEM, tools=[tool(name) for name in names], **options)
