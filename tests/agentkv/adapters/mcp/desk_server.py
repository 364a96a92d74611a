"""An MCP server for tests: nano's weather tool, and tools that misbehave. `python desk_server.py [http PORT]`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent

sys.path.insert(0, str(Path(__file__).parents[4]))
from examples.nano.tools import TOOLS

server = MCPServer("desk", log_level="ERROR")
begun = 0
both = anyio.Event()


@server.tool()
async def weather(city: str) -> dict[str, Any]:
    """The weather in a city."""
    return TOOLS["weather"].run(city=city)


@server.tool()
async def meet() -> str:
    """Returns once it was called twice."""
    global begun
    begun += 1
    if begun == 2:
        both.set()
    await both.wait()
    return "met"


@server.tool()
async def die() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Never returns; leaves a file when it is cancelled."""
    marker = Path(os.environ["DESK_MARKER"])
    marker.with_suffix(".begun").write_text("")
    try:
        await anyio.sleep_forever()
    finally:
        marker.write_text("cancelled")  # noqa: ASYNC240 - nothing may be awaited here
    return ""


@server.tool()
async def freeze() -> str:
    """Answers nothing any more; leaves a file first."""
    Path(os.environ["DESK_MARKER"]).with_suffix(".frozen").write_text("")
    time.sleep(1000)  # noqa: ASYNC251 - that is how it hangs
    return ""


@server.tool()
async def picture() -> list[TextContent | ImageContent]:
    """Text and an image."""
    return [TextContent(type="text", text="a cat"), ImageContent(type="image", data="AAAA", mime_type="image/png")]


@server.tool()
async def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)


@server.tool()
async def grow(ctx: Context) -> str:
    """Adds a tool."""

    async def shout(text: str) -> str:
        return text.upper()

    server.add_tool(shout, name="shout/loud", description="In capitals.")
    return "grown"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", port=int(sys.argv[2]))
    elif sys.argv[1:2] == ["mute"]:
        sys.stdin.read()
    else:
        server.run()
