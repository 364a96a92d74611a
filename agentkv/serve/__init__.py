"""A Context as a server: OpenAI's and Anthropic's protocols over branches. Needs the extra `serve`.

    async with kv.Context.open("nano") as ctx:
        app = agentkv.serve.application(ctx, agentkv.serve.Settings(names=("nano",)))  # ASGI

`agentkv serve FOLDER` does the same from a shell.
"""

from typing import TYPE_CHECKING

import lazy_loader

from .._types.extras import needs_extra

if TYPE_CHECKING:
    from .app import application as application
    from .settings import Settings as Settings

# Who needs the listener alone waits for no protocol's types.
_load, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"app": ["application"], "settings": ["Settings"]})


def __getattr__(name: str) -> object:
    with needs_extra("serve"):
        return _load(name)
