"""What an MCP server's tool returned, as a model reads it."""

from __future__ import annotations

from typing import Any

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from .errors import ServerToolError


def result_of(result: CallToolResult) -> Any:
    """JSON where the server gave some, else text; what is neither is named, not dropped.

    Raises ServerToolError where the tool failed.
    """
    text = "\n".join(_spelled(block) for block in result.content)
    if result.is_error:
        raise ServerToolError(text or "the tool failed, and the server does not say why")
    if result.structured_content is not None and all(isinstance(block, TextContent) for block in result.content):
        return result.structured_content
    return text


def _spelled(block: Any) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}: not shown, only text is supported]"
        case ResourceLink():
            return f"[resource {block.uri}: not read]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource():
            return f"[resource {block.resource.uri}, {block.resource.mime_type}: not shown, only text is supported]"
    return f"[{getattr(block, 'type', 'content')}: not supported]"
