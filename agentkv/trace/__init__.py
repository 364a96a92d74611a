"""Traces: recordings of a Context's work in a file that can be viewed and replayed.

    async with kv.Context.open("nano") as ctx, agentkv.trace.record(ctx, "run.trace"):
        ...

`agentkv view run.trace` and `agentkv replay run.trace` do the rest. Nothing in the core imports this package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
