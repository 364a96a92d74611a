"""What a journal costs: per call, per message and per turn, and turns of many agents with and without one.

The words of the replies are scripted; forwards, tools, files and commits are real.

python tests/benchmarks/bench_journal.py [MODEL] [--agents 1,8,32] [--rounds 4] [--repeats 3]
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio

import agentkv as kv
from agentkv.journal.turns import JournalTurnLog
from agentkv.testing.replies import Reply

MODES = ("none", "normal", "full")
ENTRIES = {"began": "question", "wrote": "message", "starts": "call starts", "ended": "call ends", "finished": "answer"}
WORDS = "It has been seen, and there is more to look at. "


@kv.tool
async def look(what: str) -> str:
    """Looks at a thing."""
    return f"{what} looks fine, with 3 windows and a door"


class Timed:
    """Milliseconds that each kind of entry takes until it is durable."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = defaultdict(list)

    def patches(self) -> ExitStack:
        stack = ExitStack()
        for name in ENTRIES:
            stack.enter_context(patch.object(JournalTurnLog, name, self._timed(name)))
        return stack

    def _timed(self, name: str) -> Any:
        method = getattr(JournalTurnLog, name)

        async def timed(*given: Any) -> None:
            began = time.perf_counter()
            await method(*given)
            self.took[name].append(1000 * (time.perf_counter() - began))

        return timed


def replies(rounds: int) -> Any:
    """Each turn makes `rounds` messages of two calls each, and an answer."""

    def reply(text: str) -> Reply:
        asked = text[text.rindex("question ") :]
        made = len(set(re.findall(r'"(\d+[ab])"', asked)))
        if made == 2 * rounds:
            return WORDS * 2
        at = made // 2
        return [kv.testing.call("look", what=f"{at}a"), kv.testing.call("look", what=f"{at}b")]

    return reply


async def measured(model: str | None, mode: str, agents: int, rounds: int, folder: Path) -> tuple[float, Timed, int]:
    """Seconds for a turn of each of the agents at once, times of its entries, and bytes of the journal."""
    timed, agent = Timed(), kv.Agent("You look at things.", tools=[look], max_rounds=rounds + 4)
    path = folder / f"{mode}{time.perf_counter_ns()}.db"
    journal = None if mode == "none" else kv.Journal(path, mode)  # type: ignore[arg-type]
    capacity = 160 * (rounds + 2) * (agents + 1)
    async with kv.testing.replies(replies(rounds), model, capacity=capacity, journal=journal) as ctx:
        branches = await (await agent.trunk(ctx)).fork(agents)
        with timed.patches():
            began = time.perf_counter()
            await kv.gather(*(agent.run(each, f"question {n}") for n, each in enumerate(branches)))
            seconds = time.perf_counter() - began
    return seconds, timed, path.stat().st_size if journal else 0


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for agents in options.agents:
            seconds: dict[str, list[float]] = defaultdict(list)
            took: dict[str, dict[str, list[float]]] = {mode: defaultdict(list) for mode in MODES}
            size = 0
            for _ in range(options.repeats):
                for mode in MODES:
                    spent, timed, nbytes = await measured(options.model, mode, agents, options.rounds, Path(folder))
                    seconds[mode].append(spent)
                    size = max(size, nbytes)
                    for name, values in timed.took.items():
                        took[mode][name] += values
            print(
                f"\n{agents} agents, {options.rounds} rounds of two calls each; {size / agents / 1024:.1f} KiB a turn"
            )
            for mode in MODES:
                median = statistics.median(seconds[mode])
                ratio = median / statistics.median(seconds["none"])
                line = ", ".join(
                    f"{ENTRIES[name]} {statistics.median(took[mode][name]):.2f}" for name in ENTRIES if took[mode][name]
                )
                print(f"{mode:7} {agents / median:6.2f} turns/s ({ratio:.3f} x none) {line and f'ms: {line}'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model folder or file; nano if left out")
    parser.add_argument("--agents", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the journals are written; the system's temporary folder if left out")
    anyio.run(main, parser.parse_args())
