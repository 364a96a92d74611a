"""Tokens of a generation on a server, as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from .._errors import AgentKVError
from .._generation import Generation, Out_co, Token
from ..output._asked import Asked
from ._values import generation_of, token_of
from ._wire import Told

if TYPE_CHECKING:
    from ._branch import RemoteBranch


class RemoteStream(Generic[Out_co]):
    """As `kv.TokenStream`: an async context manager and iterator of `kv.Token`. Leaving the block stops the generation,
    and the branch then holds exactly the tokens that were read."""

    def __init__(self, branch: RemoteBranch, body: Told, asked: Asked[Any]) -> None:
        """Private: use `RemoteBranch.stream`."""
        self._branch = branch
        self._body = body
        self._asked = asked
        self._stack = AsyncExitStack()
        self._events: AsyncIterator[tuple[str, Told]] | None = None
        self._began = 0  # tokens of the branch before it
        self._read: list[Token] = []
        self._over = False
        self._generation: Generation[Any] | None = None

    async def __aenter__(self) -> RemoteStream[Out_co]:
        if self._events is not None:
            raise AgentKVError("this stream was entered before; call `branch.stream` again for another generation")
        path = f"{self._branch._path}/generate"
        self._events = await self._stack.enter_async_context(self._branch._wire.events(path, self._body))
        _, begun = await anext(self._events)
        self._began = begun["length"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if self._over or self._branch.closed:
            return
        self._over = True
        tokens = [token for token in self._read if token.id >= 0]
        await self._branch._stop(self._began + len(tokens))
        told = {
            "text": "".join(token.text for token in self._read),
            "tokens": [token.id for token in tokens],
            "logprobs": [token.logprob for token in tokens],
            "finish_reason": "cancelled",
            "usage": {"prompt_tokens": self._began, "completion_tokens": len(tokens)},
            "seed": (self._body["sampling"] or {}).get("seed"),
            "top_logprobs": [[top._asdict() for top in token.top_logprobs] for token in tokens],
            "output": None,
            "output_error": None,
        }
        self._generation = generation_of(told, self._asked)

    def __aiter__(self) -> RemoteStream[Out_co]:
        return self

    async def __anext__(self) -> Token:
        """The next token; raises what ended the generation, if it was an error."""
        if self._events is None:
            raise AgentKVError("the stream has not begun; use `async with branch.stream(...) as tokens`")
        if self._over:
            raise StopAsyncIteration
        try:
            name, told = await anext(self._events)
        except AgentKVError:
            self._over = True
            raise
        if name == "token":
            self._read.append(token_of(told))
            return self._read[-1]
        self._over = True
        self._branch._take(told)
        self._generation = generation_of(told["generation"], self._asked)
        raise StopAsyncIteration

    @property
    def generation(self) -> Generation[Out_co]:
        """The generation, once it has ended: all of it, or what was read. Raises AgentKVError before."""
        if self._generation is None:
            raise AgentKVError("the generation still runs; read the stream to its end or leave its block first")
        return self._generation
