"""A small MCP server, for `mcp_tools.py`: what any other would be in its place."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer
from nano.tools import TOOLS

server = MCPServer("weather", log_level="ERROR")


@server.tool()
async def weather(city: str) -> dict[str, Any]:
    """weather in a city"""
    return TOOLS["weather"].run(city)


if __name__ == "__main__":
    server.run()
