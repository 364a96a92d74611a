"""Detection of branches that a block leaves open."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .._context.context import Context


@asynccontextmanager
async def no_leaks(context: Context) -> AsyncIterator[None]:
    """Checks that a block leaves no branch open that it made: `async with kv.testing.no_leaks(ctx): ...`.

    Branches without a reference are closed by themselves and do not count. A block that raises is not checked.

    Raises:
        AssertionError: there are such branches; the message names them.
    """
    before = {branch.id for branch in context.branches}
    yield
    gc.collect()
    left = [branch for branch in context.branches if branch.id not in before]
    if left:
        names = ", ".join(f"branch {branch.id} ({len(branch)} tokens: ...{branch.text[-60:]!r})" for branch in left)
        raise AssertionError(f"left behind and still referred to: {names}; close them, or adopt and close")
