"""What the tests of `agentkv chat` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .person import Person

ANSWER = "I am Nano, your desk agent."
BABBLE = ("--temperature", "50", "--max-tokens", "3000", "--seed", "8")  # words at random, some hundred of them
TOOL = """
import agentkv as kv, os, sys, time

@kv.tool{asks}
def weather(city: str) -> str:
    "weather in a city"
    {body}
"""
SitDown = Callable[..., Person]


def tool_file(folder: Path, body: str, asks: str = "") -> str:
    file = folder / "tools.py"
    file.write_text(TOOL.format(body=body, asks=asks))
    return str(file)


def until_there(path: Path) -> str:
    """Body of a tool that returns once there is such a file."""
    return f"while not os.path.exists({str(path)!r}): time.sleep(0.01)"
