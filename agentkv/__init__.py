"""Agents on forked KV-cache branches, on your own model and machine.

import agentkv as kv

async with kv.Context.open("path/of/a/model/folder") as ctx:
    trunk = await ctx.branch("Once upon a time")
    kids = await trunk.fork(4)
    outs = await kv.gather(*(kid.generate(max_tokens=32) for kid in kids))
"""

import lazy_loader

# `import agentkv` reads the list of names in `__init__.pyi` and loads nothing behind them.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("agentkv-sdk")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return _load(name)
    except OSError:
        from ._types.errors import loading

        with loading(f"agentkv.{name}"):
            raise
