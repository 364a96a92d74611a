"""Tools of MCP servers for agents: the connection, the tools, and their results as text for the model."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus
from pydantic import ValidationError

from ..._aio.lock import Lock
from ..._types.errors import InvalidInput
from ..._types.extras import needs_extra
from ..._types.log import log
from ..._types.show import preview
from ...agents.tool import Tool
from .errors import ServerLost, ServerToolError

with needs_extra("mcp"):
    import httpx2
    from mcp import Client, MCPError, StdioServerParameters
    from mcp_types import (
        CONNECTION_CLOSED,
        AudioContent,
        CallToolResult,
        EmbeddedResource,
        ImageContent,
        ResourceLink,
        TextContent,
        TextResourceContents,
    )
    from mcp_types import Tool as ServerTool


def result_of(result: CallToolResult) -> Any:
    """Result of a call: JSON if the server sent some, else text. Content of other kinds is named in the text.

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


DEFAULT_TIMEOUT = 60.0  # seconds
MOST_NAME = 64  # characters
_LOST = (CONNECTION_CLOSED,)
_BROKEN = (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, httpx2.HTTPError)
_UNSAID = re.compile(r"[^A-Za-z0-9_.-]")  # characters that names of our tools cannot have


@asynccontextmanager
async def connect(
    server: str | Sequence[str],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    prefix: str = "",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> AsyncIterator[Connection]:
    """Connects to a server for the length of an `async with` block; its tools are a toolset for
    `kv.Agent(toolsets=[...])`.

    A server lost during a call fails that call; the next one starts or connects to it again. Its tools are listed
    before each turn, so that changes take effect then.

    Args:
        server: a command, whose process is started here and spoken to over its stdin and stdout; or an http or https
            URL (streamable HTTP).
        timeout: seconds for a call, and for the server to come up; a process that does not has a few more to end.
        prefix: prefix for the names of its tools, to tell those of several servers apart.
        env: environment variables for the process, beside a few that are safe to pass on.
        cwd: working directory of the process.

    Raises:
        InvalidInput: `server` is neither a command nor a URL.
        ServerLost: the server does not come up, or does not list its tools.
    """
    target = _target(server, env, cwd)
    failure: Exception | None = None  # raised outside of the group, so not wrapped in an ExceptionGroup
    async with anyio.create_task_group() as group:
        connection = Connection(target, timeout, prefix, group)
        try:
            await connection.tools()
            yield connection
        except Exception as error:
            failure = error
        finally:
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Connection:
    """Tools of one server. Made by `connect`; agents and turns may share it."""

    def __init__(self, target: str | StdioServerParameters, timeout: float, prefix: str, group: TaskGroup) -> None:
        """Private: use `connect`."""
        self.name = target if isinstance(target, str) else shlex.join([target.command, *target.args])
        self._target = target
        self._timeout = timeout
        self._prefix = prefix
        self._group = group
        self._session: _Session | None = None
        self._opening = Lock()

    def __repr__(self) -> str:
        return f"<Connection to {self.name}>"

    async def tools(self) -> list[Tool[Any, ..., Any]]:
        """Lists the server's present tools. Raises ServerLost."""
        was_up = self._is_up
        try:
            return await self._listed()
        except ServerLost:
            if not was_up:
                raise
            return await self._listed()  # it may have gone since the last turn; listing is safe to repeat

    @property
    def _is_up(self) -> bool:
        return self._session is not None and not self._session.ended

    async def _listed(self) -> list[Tool[Any, ..., Any]]:
        client, session = await self._client(), self._session
        listed: list[ServerTool] = []
        with self._told("does not list its tools"), self._lost_if_late(session), anyio.fail_after(self._timeout):
            page = await client.list_tools(cache_mode="bypass")
            listed += page.tools
            while page.next_cursor is not None:
                page = await client.list_tools(cursor=page.next_cursor, cache_mode="bypass")
                listed += page.tools
        return [self._tool(tool, name) for name, tool in self._by_names(listed).items()]

    def _by_names(self, listed: Sequence[ServerTool]) -> dict[str, ServerTool]:
        """Tools by their local names: prefixed, valid for models, and unique."""
        named: dict[str, ServerTool] = {}
        for tool in {tool.name: tool for tool in listed}.values():
            if not tool.name:
                log.warning("a tool without a name is left out", server=self.name)
                continue
            name = stem = _UNSAID.sub("_", self._prefix + tool.name)[:MOST_NAME]
            for number in itertools.count(2):
                if name not in named:
                    break
                name = f"{stem[: MOST_NAME - len(str(number)) - 1]}_{number}"
            named[name] = tool
        return named

    def _tool(self, tool: ServerTool, name: str) -> Tool[Any, ..., Any]:
        async def call(**arguments: Any) -> Any:
            client, session = await self._client(), self._session
            with self._told(f"did not answer a call of {tool.name}"), _under_way(session):
                answer = await client.call_tool(tool.name, arguments)
            return result_of(answer)

        schema = {**tool.input_schema, "type": "object"}
        return Tool(name, tool.description or tool.title or "", schema, call, timeout=self._timeout)

    async def _client(self) -> Client:
        """Client of the open session; opens one if needed."""
        async with self._opening:
            if not self._is_up:
                self._session = _Session(self._target, self.name)
                with self._told("does not come up"), anyio.fail_after(self._timeout):
                    await self._group.start(self._session.run)
            assert self._session is not None
            assert self._session.client is not None
            return self._session.client

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Translates errors of the server; `what` says what it failed to do. Ends a lost session, so that the next use
        opens another."""
        session = self._session
        try:
            yield
        except TimeoutError as error:
            raise ServerLost(f"{self.name} {what} within {self._timeout:g} s") from error
        except MCPError as error:
            if error.code not in _LOST:
                raise ServerToolError(str(error)) from error
            self._lose(session)
            raise ServerLost(f"{self.name} {what}: it went away") from error
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"]))
            told = f"it answers {preview(fault['input'])} for {where}: {fault['msg']}"
            raise ServerLost(f"{self.name} {what}: {told}") from error
        except (*_BROKEN, ExceptionGroup) as error:
            self._lose(session)
            raise ServerLost(f"{self.name} {what}: {_reason(error)}") from error

    @contextmanager
    def _lost_if_late(self, session: _Session | None) -> Iterator[None]:
        """Ends the session if listing tools times out while no call runs: such a server hangs."""
        try:
            yield
        except TimeoutError:
            if session is not None and not session.calls:
                self._lose(session)
            raise

    def _lose(self, session: _Session | None) -> None:
        session = session or self._session
        if session is not None:
            session.end()


class _Session:
    """One session of a connection, in a task of its own, so that any task can end it.

    Attributes:
        calls: number of running calls.
    """

    def __init__(self, target: str | StdioServerParameters, name: str) -> None:
        self._target = target
        self._name = name
        self._over = anyio.Event()
        self.client: Client | None = None
        self.calls = 0

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        self._over.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            async with Client(self._target) as client:
                self.client = client
                task_status.started()
                await self._over.wait()
        except Exception as error:
            if self.client is None:
                raise
            log.warning("an MCP server went away", server=self._name, error=_reason(error))
        finally:
            self._over.set()


@contextmanager
def _under_way(session: _Session | None) -> Iterator[None]:
    if session is None:  # it was lost meanwhile
        yield
        return
    session.calls += 1
    try:
        yield
    finally:
        session.calls -= 1


def _target(
    server: str | Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None
) -> str | StdioServerParameters:
    """Parses a URL or a command. Raises InvalidInput."""
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        return server
    words = _words(server)
    if not words or "://" in words[0]:
        raise InvalidInput(f"server is {preview(server)}, but it must be a command, or an http or https URL")
    return StdioServerParameters(command=words[0], args=words[1:], env=None if env is None else dict(env), cwd=cwd)


def _words(server: object) -> list[str]:
    """Words of a command; empty if it is none."""
    if isinstance(server, Sequence) and not isinstance(server, str | bytes):
        return list(server) if all(isinstance(word, str) for word in server) else []
    try:
        return shlex.split(server) if isinstance(server, str) else []
    except ValueError:  # an unclosed quotation
        return []


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError) and str(error) == "Not Found":  # the SDK's error for HTTP's 404
        return "there is nothing at this address; those of most servers end in /mcp"
    return str(error) or type(error).__name__
