"""What a branch does when it does not fit any more: into the cache, or into the positions that the model has.

    async with kv.Context.open(model, overflow=kv.overflow.DropOldest(keep=4)) as ctx: ...
    branch = await ctx.branch(messages, overflow=kv.overflow.Stop())

A policy is asked before anything fails; where it makes no room, the verb ends as it would without one.
"""

from ._context.overflow import Overflow, Room
from ._context.overflow_policies import DropOldest, Stop
from .agents.summarize import Summarize

__all__ = ["DropOldest", "Overflow", "Room", "Stop", "Summarize"]
