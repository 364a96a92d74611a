"""Branches as tools of an MCP server: an agent elsewhere thinks on a model here, with forks and rollbacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any, ParamSpec, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from ..._errors import AgentKVError, InvalidInput
from ..._generation import Generation
from ..._inputs import ChatMessage
from ..._sampling import Sampling
from ...output import JsonSchema
from .named_branches import Named, NamedBranches
from .told import Chosen, Held, Written

_INSTRUCTIONS = """Branches of one language model's context. `new_branch` reads a prompt, `fork` continues it several \
ways without reading it again, `rollback` forgets what came after a point. `generate` lets the model write; `chat` \
asks it a question. Close branches that are not needed."""

P = ParamSpec("P")
R = TypeVar("R")
Name = Annotated[str, Field(description="Name of a branch, as new_branch or fork gave it.")]
Count = Annotated[int, Field(ge=1, le=100_000)]
Temperature = Annotated[float, Field(ge=0, le=10, description="0 takes the likeliest token each time.")]


def branch_server(branches: NamedBranches) -> MCPServer:
    """The verbs of branches as tools. Errors of theirs are results that say what to do."""
    tools: list[Tool] = []

    def tool(verb: Callable[P, Awaitable[R]]) -> None:
        tools.append(_strict(Tool.from_function(_told_why(verb))))

    @tool
    async def new_branch(text: str | None = None, messages: list[dict[str, Any]] | None = None) -> Held:
        """A new branch that has read a text, or chat messages ({"role", "content"}); empty without either."""
        return _told(await branches.new(_prompt(text, messages)))

    @tool
    async def extend(branch: Name, text: str | None = None, messages: list[dict[str, Any]] | None = None) -> Held:
        """Reads more on a branch."""
        prompt = _prompt(text, messages)
        if not prompt:
            raise InvalidInput("there is nothing to read; give text, or messages")
        await branches.get(branch).extend(prompt)
        return _held(branches, branch)

    @tool
    async def fork(branch: Name, n: Count = 1) -> list[Held]:
        """New branches that go on from where this one is, at no cost."""
        return [_told(named) for named in await branches.forks(branch, n)]

    @tool
    async def rollback(branch: Name, tokens: Annotated[int, Field(ge=0)]) -> Held:
        """Forgets everything behind the first so many tokens."""
        rolled = branches.get(branch)
        if tokens > len(rolled):
            raise InvalidInput(f"{branch} has {len(rolled)} tokens, so it cannot keep the first {tokens}")
        await rolled.rollback(tokens)
        return _held(branches, branch)

    @tool
    async def adopt(branch: Name, other: Name) -> Held:
        """A branch becomes what another one is, which stays."""
        await branches.get(branch).adopt(branches.get(other))
        return _held(branches, branch)

    @tool
    async def generate(
        branch: Name,
        max_tokens: Count = 256,
        temperature: Temperature = 0.0,
        seed: int | None = None,
        stop: list[str] | None = None,
        json_schema: dict[str, Any] | None = None,
    ) -> Written:
        """The model writes on, held to a JSON schema where one is given. What it writes is part of the branch."""
        how: dict[str, Any] = {} if json_schema is None else {"output": JsonSchema(json_schema)}
        sampling = Sampling(temperature=temperature, seed=seed)
        made = await branches.get(branch).generate(max_tokens=max_tokens, stop=stop, sampling=sampling, **how)
        return _written(branches, branch, made)

    @tool
    async def chat(
        branch: Name, message: str, max_tokens: Count = 256, temperature: Temperature = 0.0, seed: int | None = None
    ) -> Written:
        """Asks a question on a branch of messages, and has it answered."""
        asked, sampling = branches.get(branch), Sampling(temperature=temperature, seed=seed)
        await asked.extend([{"role": "user", "content": message}])
        made = await asked.generate(max_tokens=max_tokens, sampling=sampling)
        return _written(branches, branch, made)

    @tool
    async def select(branch: Name, choices: list[str]) -> Chosen:
        """Which of some texts the model finds likeliest next; the branch stays as it is."""
        choice = await branches.get(branch).select(choices)
        return {"index": choice.index, "text": choice.text}

    @tool
    async def read(branch: Name) -> str:
        """All that a branch holds, as text."""
        return branches.get(branch).text

    @tool
    async def list_branches() -> str:
        """All branches, each below the one that it was forked from."""
        return branches.tree()

    @tool
    async def close(branch: Name) -> str:
        """Frees a branch."""
        await branches.close(branch)
        return "closed"

    if branches.folder is not None:

        @tool
        async def save(branch: Name, file: str) -> str:
            """Saves a branch to a file of this name."""
            saved = await branches.get(branch).save(branches.path(file))
            return f"saved {saved.nbytes} bytes"

        @tool
        async def load(file: str) -> list[Held]:
            """The branches that a file holds, without reading anything again."""
            return [_told(named) for named in await branches.load(file)]

    return MCPServer(
        "agentkv", version=version("agentkv-sdk"), instructions=_INSTRUCTIONS, log_level="WARNING", tools=tools
    )


def _strict(tool: Tool) -> Tool:
    """Refuses arguments that it does not know, which the SDK leaves out."""
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


def _told_why(verb: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    @wraps(verb)
    async def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await verb(*args, **kwargs)
        except AgentKVError as error:  # of other errors the SDK tells clients nothing
            raise ToolError(str(error)) from error

    return telling


def _prompt(text: str | None, messages: list[dict[str, Any]] | None) -> str | list[ChatMessage] | None:
    """Raises InvalidInput for both."""
    if text is not None and messages is not None:
        raise InvalidInput("text and messages are given, but a branch reads one of them at a time")
    return text if messages is None else list(messages)


def _told(named: Named) -> Held:
    return {"branch": named.name, "tokens": len(named.branch)}


def _held(branches: NamedBranches, name: str) -> Held:
    return {"branch": name, "tokens": len(branches.get(name))}


def _written(branches: NamedBranches, name: str, made: Generation[Any]) -> Written:
    return {
        "branch": name,
        "tokens": len(branches.get(name)),
        "text": made.text,
        "finish_reason": made.finish_reason,
        "generated": len(made.tokens),
    }
