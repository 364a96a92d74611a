"""What goes wrong between an agent and an MCP server."""

from __future__ import annotations

from ..._types.errors import AgentKVError


class ServerLost(AgentKVError):
    """An MCP server cannot be reached, went away or does not speak the protocol; the next call tries again."""


class ServerToolError(AgentKVError):
    """A server refuses a call, or its tool says what went wrong; the model reads it."""
