"""Traces: what happened in a Context, recorded to a file that can be looked at and run again.

    async with kv.Context.open("nano") as ctx, agentkv.trace.record(ctx, "run.trace"):
        ...

`agentkv view run.trace` and `agentkv replay run.trace` do the rest. A door: nothing in the core imports it.
"""

from .recording import Recording, record

__all__ = ["Recording", "record"]
