"""What a process leaves in its journal when it ends at some point: a copy of the files as they are then."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

import agentkv as kv
from agentkv.testing.replies import Reply

call = kv.testing.call
QUESTION = "How much is it?"


def _not_empty(what: str) -> str:
    if not what:
        raise ValueError("say what")
    return what


def copied(journal: Path, to: str) -> Path:
    """A copy of a journal as a process that ends now leaves it."""
    copy = journal.with_name(to)
    for end in ("", "-wal"):
        if (found := Path(f"{journal}{end}")).exists():
            shutil.copy(found, f"{copy}{end}")
    return copy


@asynccontextmanager
async def opened(
    script: Sequence[Reply] | Callable[[str], Reply], journal: kv.Journal | Path, **options: Any
) -> AsyncIterator[tuple[kv.Context, kv.Journal]]:
    """A Context whose replies are scripted, with a journal."""
    record = kv.Journal(journal) if isinstance(journal, Path) else journal
    async with kv.testing.replies(script, threads=1, capacity=4096, **options, journal=record) as ctx:
        yield ctx, record


async def left_by(journal: kv.Journal, ctx: kv.Context) -> list[kv.UnfinishedRun]:
    return [left async for left in journal.unfinished(ctx)]


async def only_left(journal: kv.Journal, ctx: kv.Context) -> kv.UnfinishedRun:
    (left,) = await left_by(journal, ctx)
    return left


class Crash:
    """Tools, and the place in them at which the process "ends".

    Attributes:
        ran: calls that ran, with their keys.
    """

    def __init__(self, path: Path, at: str = "") -> None:
        self.path = path
        self.at = at
        self.ran: list[tuple[str, str]] = []

    def tool(self, name: str, **options: Any) -> kv.Tool[Any, ..., Any]:
        """A tool that says that it ran; before that, it is where the process ends if it is the one."""

        async def run(ctx: kv.RunContext[Any], what: Annotated[str, AfterValidator(_not_empty)]) -> str:
            self.here(f"{name} {what}")
            self.ran.append((f"{name} {what}", ctx.call_key))
            return f"{name} {what} done"

        return kv.tool(name=name, description=f"to {name}", early=False, **options)(run)

    def here(self, place: str) -> None:
        if place == self.at:
            copied(self.path, "crashed.db")

    @property
    def crashed(self) -> Path:
        """The journal that the process left."""
        return self.path.with_name("crashed.db")
