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


class Held:
    """Answers that wait for the person who reads them: a file of tools in whose process the engine makes some steps
    whenever the person looks, until `end`."""

    STEPS = 100
    _TOOLS = """
import os, time
from agentkv._engine.worker import EngineWorker

step, since, steps = EngineWorker.step, 0, 0

def went_on():
    try:
        return os.stat({file!r}).st_mtime_ns
    except FileNotFoundError:
        return None

def step_held(worker):
    global since, steps
    while (now := went_on()) is not None and now == since and steps >= {most}:
        time.sleep(0.01)
    steps = steps + 1 if now == since else 0
    since = now
    return step(worker)

EngineWorker.step = step_held
"""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "held"
        body = 'return "fog"' + self._TOOLS.format(file=str(self._file), most=self.STEPS)
        self.tools = ("--tools", tool_file(folder, body))

    def begin(self) -> None:
        """From now on it waits."""
        self._file.touch()

    def end(self) -> None:
        """From now on it does not."""
        self._file.unlink(missing_ok=True)

    def until(self, person: Person, holds: Callable[[], bool]) -> None:
        """Has the person read until it holds, or the answer is over."""

        def holds_now() -> bool:
            self._file.touch()
            return holds() or person.is_prompted

        person.until(holds_now)

    def hears(self, person: Person, line: str, characters: int) -> None:
        """Has the person ask, and read until that much of an answer is there, or a shorter one is over."""
        self.begin()
        shown, asked = len(person.text), person.text.count(f"> {line}")
        person.say(line)
        person.until(lambda: person.text.count(f"> {line}") > asked)  # until then the prompt is the one before
        self.until(person, lambda: len(person.text) > shown + characters)
