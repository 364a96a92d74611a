"""Options of an evaluation, and the runner that they choose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .._chat.call_habits import Rescue
from .cases import Case
from .outcome import Runner
from .run import CaseResult, evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """Options of `agentkv eval tools`, described in its help."""

    model: Path
    server: str | None
    serve: bool
    api_key: str | None
    tool_choice: str
    style: str | None
    call_threshold: float | None
    call_format: str | None
    rescue: Rescue
    parallel: int
    max_tokens: int
    capacity: int
    threads: int | None

    @property
    def through(self) -> str:
        """Name of the runner: a server's URL, "agentkv serve" or "kv.Agent"."""
        return self.server or ("agentkv serve" if self.serve else "kv.Agent")

    def check_installed(self) -> None:
        """Raises ImportError, with the way to install it, if the runner needs what is not installed."""
        if self.serve:
            from . import serving  # noqa: F401
        if self.serve or self.server is not None:
            from . import server_runner  # noqa: F401


async def evaluated(
    how: EvaluationOptions, cases: Sequence[Case], done: Callable[[CaseResult], None]
) -> list[CaseResult]:
    """Evaluates all cases. Raises as `Context.open` does, RemoteError and InvalidInput."""
    async with _runner(how) as runner:
        return await evaluate(cases, runner, how.parallel, done)


@asynccontextmanager
async def _runner(how: EvaluationOptions) -> AsyncIterator[Runner]:
    if how.server is not None:
        async with _of_server(how, how.server) as runner:
            yield runner
        return
    from .._context.context import Context
    from ..models._resolve import folder_called

    folder = folder_called(how.model)
    async with Context.open(
        folder, how.capacity, threads=how.threads, call_format=how.call_format, rescue=how.rescue
    ) as context:
        if how.serve:
            from .serving import served

            async with served(context, how.call_threshold) as url, _of_server(how, url) as runner:
                yield runner
            return
        from .agent_runner import AgentRunner

        given = {"style": how.style, "call_threshold": how.call_threshold}
        options = {name: value for name, value in given.items() if value is not None}
        yield AgentRunner(context, how.max_tokens, how.tool_choice, options)


@asynccontextmanager
async def _of_server(how: EvaluationOptions, url: str) -> AsyncIterator[Runner]:
    from .server_runner import server_runner

    async with server_runner(url, str(how.model), how.max_tokens, how.tool_choice, how.api_key) as runner:
        yield runner
