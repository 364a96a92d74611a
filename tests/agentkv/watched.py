"""The engine of a Context, watched: what streams leave behind is compared with what they made, on its thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import agentkv as kv


class Watched:
    """Every call goes on to the engine. Each generation that is taken back must leave its first tokens and no other."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._begun: dict[int, tuple[int, list[int]]] = {}  # job: its branch, and the tokens it found
        self._made: dict[int, list[int]] = {}
        self.faults: list[str] = []
        self.cut = 0  # generations that had made more
        self.stayed = 0  # others had gone on with their branches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, branch: int, options: Any) -> int:
        found = self._engine.tokens(branch).tolist()
        job: int = self._engine.generate(branch, options)
        self._begun[job], self._made[job] = (branch, found), []
        return job

    def step(self) -> Any:
        return self._hear(self._engine.step())

    def settle(self) -> Any:
        return self._hear(self._engine.settle())

    def _hear(self, report: Any) -> Any:
        for emitted in report.emitted:
            self._made[emitted.job].append(emitted.token)
        return report

    def undo(self, job: int, kept: int = 0) -> bool:
        done: bool = self._engine.undo(job, kept)
        if job not in self._begun:
            return done
        branch, found = self._begun[job]
        made = self._made[job]
        if not done:
            self.stayed += 1
        elif made[kept:]:
            self.cut += 1
            tokens, cached = self._engine.tokens(branch).tolist(), self._engine.n_cached(branch)
            if tokens != found + made[:kept]:
                self.faults.append(f"of {made} {kept} were to stay after {found}, but it holds {tokens}")
            if cached not in (len(tokens), len(tokens) - 1) or (kept and cached == len(tokens)):
                self.faults.append(f"{cached} of {len(tokens)} tokens are cached")
        return done


@asynccontextmanager
async def watched(ctx: kv.Context) -> AsyncIterator[Watched]:
    """Watches the engine of a Context for the length of a block."""
    worker: Any = ctx._core.loop._worker
    engine = Watched(worker.engine)

    def put(into: Any) -> Any:
        return lambda _: setattr(worker, "engine", into)

    await ctx._core.loop.call(put(engine))
    try:
        yield engine
    finally:
        await ctx._core.loop.call(put(engine._engine))
    assert engine.faults == []
