"""Traces: what happened in a Context, recorded to a file that can be looked at and run again.

    async with kv.Context.open("nano") as ctx, agentkv.trace.record(ctx, "run.trace"):
        ...

`agentkv view run.trace` and `agentkv replay run.trace` do the rest. A door: nothing in the core imports it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
