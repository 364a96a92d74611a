"""Words that enter a generation on a branch, which goes on behind them in the same response."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response

from ..._context.handle import handle_of
from ..._types.errors import AgentKVError, TurnNotRunning
from ...agents.control import TurnControl
from ...agents.sentences import tokens_of_sentences
from ..http.body import read_body
from ..http.errors import ApiError
from ..http.idempotency import respond
from . import bodies

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..._types.results import Generation
    from ...agents.control import Words
    from ..http.responses import Emit
    from ..server import Server
    from .registry import BranchEntry

Part = Callable[[TurnControl], Awaitable["Generation[Any] | None"]]
"""Generates one message; ends it, and may return None, for words that enter at once."""
Told = Callable[[Mapping[str, Any]], Awaitable[None]]


async def steer_branch(server: Server, request: Request) -> Response:
    """`POST .../steer`: has words enter the running generation as a user's message, and responds once they have.
    Needs no admission."""
    body = await read_body(server, request, bodies.SteerBody)

    async def work(emit: Emit) -> None:
        with server.branches.using(request.path_params["branch"]) as entry:
            if entry.steering is None:
                raise _not_generating("nothing is generated on this branch; send a message by extend, and generate")
            try:
                words = entry.steering.steer(body.text, body.at_once)
                await words
            except TurnNotRunning as error:
                raise _not_generating("the generation ended before these words could enter; extend by them") from error
            await emit(json.dumps({"id": entry.id, "object": "branch", "steered": words_json(words)}))

    return respond(server.branches.entry(request.path_params["branch"]).answers, request, body, work)


class SteeredGeneration:
    """A generation on a branch, message by message: words that came meanwhile enter behind each.

    Attributes:
        steered: the words that entered, as JSON.
    """

    def __init__(self, server: Server, entry: BranchEntry, is_text: bool, told: Told) -> None:
        """`is_text`: whether sentences can be told from the output; `told` hears of words that entered."""
        self._server = server
        self._entry = entry
        self._is_text = is_text
        self._told = told
        self._control = TurnControl()
        self.steered: list[Mapping[str, Any]] = []

    async def run(self, part: Part) -> Generation[Any]:
        """Generates until no words wait. Returns the generation of the last message; raises what ended it early."""
        self._entry.steering = control = self._control
        try:
            while True:
                start = len(self._entry.branch)
                generation = await part(control)
                if control.interrupts and (generation is None or generation.finish_reason == "cancelled"):
                    await self._take_back(start)
                    generation = None
                entered = await self._enter()
                if generation is not None and not entered:
                    return generation
        finally:
            control.end()
            self._entry.steering = None

    async def _take_back(self, start: int) -> None:
        """Cuts a message behind its last whole sentence, or entirely."""
        branch = self._entry.branch
        handle = handle_of(branch)
        chat, conversation, tokens = handle.core.chat, handle.state.conversation, handle.state.tokens
        begin = conversation.end
        prefix = chat.begun_in(tokens[:begin])
        tools = conversation.tools or ()
        kept = tokens_of_sentences(tokens[begin:], lambda: chat.reply_parser(prefix, tools)) if self._is_text else 0
        await branch.rollback(max(begin + kept, min(max(start, begin), len(branch))))

    async def _enter(self) -> bool:
        """Has the words that wait enter the conversation. Returns whether any did: others are refused."""
        branch, entered = self._entry.branch, False
        while words := list(self._control.waiting):
            try:
                self._check_chat()
                said = [{"role": "user", "content": each.text} for each in words]
                await self._server.with_room(partial(branch.extend, said))
            except (AgentKVError, ApiError) as error:
                self._control.settle(words, error)
                continue
            self._control.settle(words)
            entered = True
            for each in words:
                self.steered.append({**words_json(each), "length": len(branch)})
                await self._told(self.steered[-1])
        return entered

    def _check_chat(self) -> None:
        """Raises ApiError for a branch of text, which takes no messages."""
        if not handle_of(self._entry.branch).state.conversation.awaits_reply:
            what = "this branch is no conversation, and words are a user's message; begin it with messages"
            raise ApiError("invalid", what, "not_a_chat", "text")


def words_json(words: Words) -> dict[str, Any]:
    """JSON of words that entered."""
    return {"text": words.text, "at_once": words.at_once}


async def until_words(
    control: TurnControl, generate: Callable[[], Awaitable[Generation[Any]]]
) -> Generation[Any] | None:
    """Generates a message; None where words that enter at once ended it, which keeps its tokens."""
    with anyio.CancelScope() as scope, control.generating(scope.cancel):
        return await generate()
    return None


def _not_generating(what: str) -> ApiError:
    return ApiError("conflict", what, "not_generating")
