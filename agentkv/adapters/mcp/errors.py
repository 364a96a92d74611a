"""Errors between an agent and an MCP server."""

from __future__ import annotations

from ..._types.errors import AgentKVError


class ServerLost(AgentKVError):
    """An MCP server cannot be reached, went away or does not speak the protocol; the next call tries again."""


class ServerToolError(AgentKVError):
    """An MCP server refused a call, or its tool failed; the model reads the message."""
