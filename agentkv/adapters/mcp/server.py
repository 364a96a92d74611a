"""Branches as tools of an MCP server, so that an agent elsewhere works on a model here, with forks and rollbacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from ..._context.named_branches import NamedBranch
from ..._types.checks import ChatMessage
from ..._types.errors import AgentKVError, InvalidInput
from ..._types.extras import needs_extra
from ..._types.results import FinishReason, Generation
from ..._types.sampling import Sampling
from ...output import JsonSchema
from .served_branches import ServedBranches

with needs_extra("mcp"):
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool


class BranchResult(TypedDict):
    """A branch and its number of tokens."""

    branch: Annotated[str, Field(description="Name of the branch.")]
    tokens: Annotated[int, Field(description="How many tokens it holds now; rollback takes such a number.")]


class GenerationResult(BranchResult):
    """Text that the model wrote, and the branch after it."""

    text: str
    finish_reason: FinishReason
    generated: Annotated[int, Field(description="How many tokens it wrote.")]


class ChoiceResult(TypedDict):
    """The likeliest of the given choices."""

    index: Annotated[int, Field(description="Its place among the choices, from 0 on.")]
    text: str


_INSTRUCTIONS = """Branches of one language model's context. `new_branch` reads a prompt, `fork` continues it several \
ways without reading it again, `rollback` forgets what came after a point. `generate` lets the model write; `chat` \
asks it a question. Close branches that are not needed."""

P = ParamSpec("P")
R = TypeVar("R")
Name = Annotated[str, Field(description="Name of a branch, as new_branch or fork gave it.")]
Count = Annotated[int, Field(ge=1, le=100_000)]
Temperature = Annotated[float, Field(ge=0, le=10, description="0 takes the likeliest token each time.")]


class BranchTools:
    """The verbs of branches as tools: their names, parameters and docstrings are what the other model reads."""

    def __init__(self, branches: ServedBranches) -> None:
        self._branches = branches

    def tools(self) -> list[Tool]:
        """Tools of the server; those for files only if there is a folder."""
        verbs: list[Callable[..., Awaitable[Any]]] = [
            self.new_branch,
            self.extend,
            self.fork,
            self.rollback,
            self.adopt,
            self.generate,
            self.chat,
            self.select,
            self.read,
            self.list_branches,
            self.close,
        ]
        if self._branches.folder is not None:
            verbs += [self.save, self.load]
        return [_strict(Tool.from_function(_told_why(verb, self._branches))) for verb in verbs]

    async def new_branch(self, text: str | None = None, messages: list[dict[str, Any]] | None = None) -> BranchResult:
        """A new branch that has read a text, or chat messages ({"role", "content"}); empty without either."""
        return _told(await self._branches.new(_prompt(text, messages)))

    async def extend(
        self, branch: Name, text: str | None = None, messages: list[dict[str, Any]] | None = None
    ) -> BranchResult:
        """Reads more on a branch."""
        prompt = _prompt(text, messages)
        if not prompt:
            raise InvalidInput("there is nothing to read; give text, or messages")
        await self._branches.get(branch).extend(prompt)
        return _held(self._branches, branch)

    async def fork(self, branch: Name, n: Count = 1) -> list[BranchResult]:
        """New branches that go on from where this one is, at no cost."""
        return [_told(named) for named in await self._branches.forks(branch, n)]

    async def rollback(self, branch: Name, tokens: Annotated[int, Field(ge=0)]) -> BranchResult:
        """Forgets everything behind the first so many tokens."""
        rolled = self._branches.get(branch)
        if tokens > len(rolled):
            raise InvalidInput(f"{branch} has {len(rolled)} tokens, so it cannot keep the first {tokens}")
        await rolled.rollback(tokens)
        return _held(self._branches, branch)

    async def adopt(self, branch: Name, other: Name) -> BranchResult:
        """A branch becomes what another one is, which stays."""
        await self._branches.get(branch).adopt(self._branches.get(other))
        return _held(self._branches, branch)

    async def generate(
        self,
        branch: Name,
        max_tokens: Count = 256,
        temperature: Temperature = 0.0,
        seed: int | None = None,
        stop: list[str] | None = None,
        json_schema: dict[str, Any] | None = None,
    ) -> GenerationResult:
        """The model writes on, held to a JSON schema where one is given. What it writes is part of the branch."""
        how: dict[str, Any] = {} if json_schema is None else {"output": JsonSchema(json_schema)}
        sampling = Sampling(temperature=temperature, seed=seed)
        made = await self._branches.get(branch).generate(max_tokens=max_tokens, stop=stop, sampling=sampling, **how)
        return _written(self._branches, branch, made)

    async def chat(
        self,
        branch: Name,
        message: str,
        max_tokens: Count = 256,
        temperature: Temperature = 0.0,
        seed: int | None = None,
    ) -> GenerationResult:
        """Asks a question on a branch of messages, and has it answered."""
        asked, sampling = self._branches.get(branch), Sampling(temperature=temperature, seed=seed)
        await asked.extend([{"role": "user", "content": message}])
        made = await asked.generate(max_tokens=max_tokens, sampling=sampling)
        return _written(self._branches, branch, made)

    async def select(self, branch: Name, choices: list[str]) -> ChoiceResult:
        """Which of some texts the model finds likeliest next; the branch stays as it is."""
        choice = await self._branches.get(branch).select(choices)
        return {"index": choice.index, "text": choice.text}

    async def read(self, branch: Name) -> str:
        """All that a branch holds, as text."""
        return self._branches.get(branch).text

    async def list_branches(self) -> str:
        """All branches, each below the one that it was forked from."""
        return self._branches.tree()

    async def close(self, branch: Name) -> str:
        """Frees a branch."""
        await self._branches.close(branch)
        return "closed"

    async def save(self, branch: Name, file: str) -> str:
        """Saves a branch to a file of this name."""
        saved = await self._branches.get(branch).save(self._branches.path(file))
        return f"saved {saved.nbytes} bytes"

    async def load(self, file: str) -> list[BranchResult]:
        """The branches that a file holds, without reading anything again."""
        return [_told(named) for named in await self._branches.load(file)]


def branch_server(branches: ServedBranches) -> MCPServer:
    """Makes an MCP server with the verbs of branches as tools. SDK errors become results that say what to do."""
    tools = BranchTools(branches).tools()
    return MCPServer(
        "agentkv", version=version("agentkv-sdk"), instructions=_INSTRUCTIONS, log_level="WARNING", tools=tools
    )


def _strict(tool: Tool) -> Tool:
    """Makes a tool refuse unknown arguments, which the SDK ignores."""
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


def _told_why(verb: Callable[P, Awaitable[R]], branches: ServedBranches) -> Callable[P, Awaitable[R]]:
    @wraps(verb)
    async def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await verb(*args, **kwargs)
        except AgentKVError as error:  # the MCP SDK hides the messages of other errors
            raise ToolError(branches.without_folder(str(error))) from error

    return telling


def _prompt(text: str | None, messages: list[dict[str, Any]] | None) -> str | list[ChatMessage] | None:
    """The prompt of a call; None for an empty one. Raises InvalidInput if both are given."""
    if text is not None and messages is not None:
        raise InvalidInput("text and messages are given, but a branch reads one of them at a time")
    return text if messages is None else list(messages)


def _told(named: NamedBranch[None]) -> BranchResult:
    return {"branch": named.name, "tokens": len(named.branch)}


def _held(branches: ServedBranches, name: str) -> BranchResult:
    return {"branch": name, "tokens": len(branches.get(name))}


def _written(branches: ServedBranches, name: str, made: Generation[Any]) -> GenerationResult:
    return {
        "branch": name,
        "tokens": len(branches.get(name)),
        "text": made.text,
        "finish_reason": made.finish_reason,
        "generated": len(made.tokens),
    }
