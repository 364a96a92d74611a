"""Branches that a piece of code leaves behind."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .._context.context import Context


@asynccontextmanager
async def no_leaks(context: Context) -> AsyncIterator[None]:
    """`async with kv.testing.no_leaks(ctx): ...` holds its block to leave no branch behind that it made.

    Branches that nobody refers to any more are closed by themselves, so they do not count. Where the block raises,
    nothing is looked at.

    Raises:
        AssertionError: names the branches that are still there.
    """
    before = {branch.id for branch in context.branches}
    yield
    gc.collect()
    left = [branch for branch in context.branches if branch.id not in before]
    if left:
        names = ", ".join(f"branch {branch.id} ({len(branch)} tokens: ...{branch.text[-60:]!r})" for branch in left)
        raise AssertionError(f"left behind and still referred to: {names}; close them, or adopt and close")
