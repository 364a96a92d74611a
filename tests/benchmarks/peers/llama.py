"""llama.cpp through its own benchmarks, with whatever settings are fastest for a row."""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from .rows import Decode, Prefill, Row


@dataclass(frozen=True)
class Setting:
    """Options that make a row faster or slower; all keep 16 bits of a number in the cache."""

    threads: int
    flash: bool
    cache: str

    def options(self) -> list[str]:
        """As both benchmarks take them."""
        flash = "on" if self.flash else "off"
        return ["-t", str(self.threads), "-fa", flash, "-ctk", self.cache, "-ctv", self.cache]


class Llama:
    """Each row is measured with every setting the first time, and from then on with the fastest."""

    name = "llama.cpp"

    def __init__(self, tools: Path, gguf: Path, tokens: int, threads: int, console: Console) -> None:
        self._tools, self._gguf, self._tokens, self._console = tools, gguf, tokens, console
        counts = sorted({threads, max(1, threads // 2)}, reverse=True)  # half: cores that share what reads memory
        self._settings = [Setting(*s) for s in itertools.product(counts, (False, True), ("f16", "bf16"))]
        self._fastest: dict[Row, Setting] = {}

    def rate(self, row: Row) -> float:
        if row in self._fastest:
            return self._measured(row, self._fastest[row])
        # Filling a deep cache takes minutes, so there all threads are taken at once.
        deep = isinstance(row, Decode) and row.depth > 0
        settings = [s for s in self._settings if not deep or s.threads == self._settings[0].threads]
        rates = {setting: self._measured(row, setting) for setting in settings}
        self._fastest[row] = best = max(rates, key=rates.__getitem__)
        self._console.print(f"llama.cpp, {row}: {' '.join(best.options())}")
        return rates[best]

    def _measured(self, row: Row, setting: Setting) -> float:
        if isinstance(row, Decode) and row.branches > 1:
            return self._batched(row, setting)
        work = ["-p", str(row.tokens), "-n", "0"] if isinstance(row, Prefill) else ["-p", "0", "-n", str(self._tokens)]
        depth = str(row.depth) if isinstance(row, Decode) else "0"
        said = self._run("llama-bench", [*work, "-d", depth, "-r", "1", "-o", "json"], setting)
        return float(json.loads(said)[0]["avg_ts"])

    def _batched(self, row: Decode, setting: Setting) -> float:
        cells = row.depth + row.branches * self._tokens
        prompt = ["-npp", str(row.depth), "-ntg", str(self._tokens), "-npl", str(row.branches), "-pps", "-kvu"]
        room = ["-c", str(cells + 256), "-b", "2048", "-ub", "512", "--output-format", "jsonl"]
        said = self._run("llama-batched-bench", [*prompt, *room], setting)
        line = next(line for line in said.splitlines() if line.startswith("{"))
        return float(json.loads(line)["speed_tg"])

    def _run(self, tool: str, options: list[str], setting: Setting) -> str:
        command = [self._tools / tool, "-m", self._gguf, *options, *setting.options()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
        return done.stdout
