"""A Context as a server: OpenAI's and Anthropic's protocols over branches. Needs the extra `serve`.

    async with kv.Context.open("nano") as ctx:
        app = agentkv.serve.application(ctx, agentkv.serve.Settings(names=("nano",)))  # ASGI

`agentkv serve FOLDER` does the same from a shell.
"""

from .._types.extras import needs_extra

with needs_extra("serve"):
    from .app import application
    from .settings import Settings

__all__ = ["Settings", "application"]
