"""State shared by all protocols of one open model: the Context, its requests, and cached conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.lowlevel
import anyio.to_thread

from .._chat.messages import checked_messages, checked_template, text_of
from .._chat.tool_results import in_call_order, with_ids_of
from .._context.branch import Branch, new_branch
from .._context.handle import core_of, handle_of
from .._context.overflow import most_cells
from .._context.prefill import PromptNeeds, PromptPrefill, Source
from .._types.errors import BranchClosed, ContextFull, OutOfMemory, TooManyBranches
from .admission import Admission, Departures, request_timeout
from .completion import ReplyRequest
from .conversations import CachedConversation, ConversationCache, digest_of, prefix_keys, reasoning_conflicts
from .fitting import fitted
from .http.errors import ApiError, advised, error_param
from .prompts import Begin, Reading, check_reply, untold
from .settings import Settings

if TYPE_CHECKING:
    from .._chat.rerender import PromptUpdate
    from .._context.context import Context
    from .._context.overflow import Room
    from .._state.branch_state import BranchState
    from .._types.adapter import Adapter
    from .branches.registry import Branches
    from .http.ignored import Ignored
    from .reply import Reply

T = TypeVar("T")


class Prompted:
    """A branch that ends with a prompt. It is closed with its block, unless `keep` caches it.

    Attributes:
        branch: with the prompt at its end.
        cached: number of prompt tokens that were in the cache already.
        messages: the messages that the client sent; empty for a text.
    """

    def __init__(self, server: Server, branch: Branch, cached: int, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        self._shelf = server.cache
        self._kept = False
        self.branch = branch
        self.cached = cached
        self.messages = messages

    def keep(self, name: str, *, promised: bool, note: object = None) -> None:
        """Caches the branch under this name: `promised` to its client, or only as long as there is room."""
        self._kept = True
        self._shelf.put(name, self.branch, promised=promised, note=note)

    def leave(self) -> None:
        """Closes the branch, unless it is cached."""
        if not self._kept:
            self.branch.close()


class Server:
    """One Context behind any number of protocols; overflow policy of all its branches, which are under its adapter.

    It ends with its Context. What all models of a process share, and what outlives a model that is closed, is made by
    `Models` and given to it.
    """

    def __init__(
        self,
        context: Context,
        settings: Settings,
        admission: Admission,
        ignored: Ignored,
        branches: Branches,
        adapter: Adapter | None = None,
    ) -> None:
        self.context = context
        self.adapter = adapter
        self.settings = settings
        self.admission = admission
        self.ignored = ignored
        self.branches = branches
        self.cache = ConversationCache(settings.most_kept)
        self._requests = Departures()
        self._warm: dict[str, CachedConversation] = {}  # kept open as long as the model is

    @property
    def fingerprint(self) -> str:
        """Short fingerprint of the model, in OpenAI's form."""
        return "fp_" + self.model_fingerprint.rpartition(":")[2][:12]

    @property
    def model_fingerprint(self) -> str:
        """Fingerprint of the model with its adapter."""
        model = self.context.model_info.fingerprint
        return model if self.adapter is None else f"{model}+{self.adapter.digest}"

    def checked(self, reply_request: ReplyRequest) -> ReplyRequest:
        """Applies the server's settings and fits the request to the model. Raises ApiError for what the model cannot
        do."""
        reply_request = replace(reply_request, call_threshold=self.settings.call_threshold)
        return fitted(reply_request, core_of(self.context), self.ignored)

    @asynccontextmanager
    async def admitted(self, headers: Mapping[str, str]) -> AsyncIterator[None]:
        """Admits one request for the length of a block. Raises ApiError and TimeoutError."""
        seconds = request_timeout(headers.get("x-request-timeout"), self.settings.most_seconds)
        async with self.admission.place(seconds):
            with self._requests.one():
                yield

    @asynccontextmanager
    async def prompted(
        self, reply_request: ReplyRequest, after: CachedConversation | None = None, begin: Begin = untold
    ) -> AsyncIterator[Prompted]:
        """A branch that ends with the request's prompt, for the length of a block. It continues `after`, or else the
        longest cached conversation with the same beginning. `begin` is called once the request is checked and the
        prompt has room.

        Where the cache lacks room, cached conversations give up theirs, or the request waits for another's end.
        """
        with error_param(reply_request.given_as):
            messages = checked_messages(reply_request.messages)
            before = [] if after is None else messages_of(after.branch)
            places = in_call_order([*before, *messages])
            messages = [messages[place - len(before)] for place in places if place >= len(before)]
            reply_request = replace(reply_request, messages=messages)
            _check_begun(reply_request)
            calls_of = digest_of([*before, *messages])
            reply_request, after = (reply_request, after) if after is not None else self._known(reply_request)
            made, kept = await self._made(reply_request, after, calls_of)
        await check_reply(core_of(self.context), reply_request, made)
        with error_param(reply_request.given_as):
            prompted = await self._read(made, begin, after, kept)
        prompted.messages = messages
        try:
            yield prompted
        finally:
            prompted.leave()

    @asynccontextmanager
    async def begun(self, prompt: str | Sequence[int], given_as: str, begin: Begin = untold) -> AsyncIterator[Prompted]:
        """A branch that holds a text or token ids, for the length of a block; `given_as` names the parameter in errors.
        Makes room and calls `begin` as `prompted` does.

        Control tokens in the text are parsed, since it is the client's own.
        """
        with error_param(given_as):
            try:
                update = await core_of(self.context).chat.encoder.prompt(prompt)
            except ContextFull as error:
                raise _too_long(error) from error
            prompted = await self._read(update, begin)
        try:
            yield prompted
        finally:
            prompted.leave()

    async def tokens_of(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template: Mapping[str, Any] | None = None,
        reply: bool = True,
    ) -> list[int]:
        """Token ids of a conversation, as a branch would have them; with `reply` the assistant's turn is opened behind
        them.

        Raises InvalidInput.
        """
        variables = checked_template(template, known=True)
        chat = core_of(self.context).chat
        work = partial(chat.conversation_tokens, messages, tools or None, variables, reply=reply)
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)

    def cache_conversation(self, prompted: Prompted, reply_request: ReplyRequest, written: Reply) -> None:
        """Caches a conversation for a client that sends all of its messages again. Skipped if the branch holds more
        than the client received: a stop string, half a call, or the space before a truncated word."""
        if written.stopped_by is not None or any(call.error is not None for call in written.message.calls):
            return
        if written.cut and written.generation.text != written.generation.text.rstrip():
            return
        messages, message = prompted.messages, written.message.as_openai()
        if messages[-1]["role"] == "assistant":  # the model continued that message
            message["content"] = text_of(messages[-1]).rstrip() + (message["content"] or "")
            messages = messages[:-1]
        names = prefix_keys([*messages, message], _about(reply_request.tools, reply_request.template))
        prompted.keep(names[-1], promised=False)

    def warm(self, branch: Branch) -> None:
        """Keeps a branch as long as the model is open, for all conversations with the same beginning."""
        conversation = handle_of(branch).state.conversation
        given = _about(conversation.tools, conversation.template)
        if names := prefix_keys([message.as_openai() for message in branch.messages], given):
            self._warm[names[-1]] = CachedConversation(branch, pinned=True)

    def close_kept(self) -> None:
        """Closes all conversations that wait to be gone on with, the `warm` ones too."""
        while self.cache.close_oldest():
            pass
        for kept in self._warm.values():
            kept.branch.close()
        self._warm.clear()

    async def with_room(self, verb: Callable[[], Awaitable[T]]) -> T:
        """Runs a verb, and again after each time that room was made. Raises ApiError where the prompt can never fit."""
        while True:
            ended = self._requests.ended
            try:
                return await verb()
            except TooManyBranches:
                if (
                    not (self.branches.close_idle() or self.cache.close_oldest())
                    and self._requests.ended == ended  # no request ended meanwhile
                    and not await self._requests.next()
                ):
                    raise
            except (ContextFull, OutOfMemory) as error:
                if getattr(error, "hopeless", False):
                    raise _too_long(error) from error
                if not await self._evict_one() and self._requests.ended == ended and not await self._requests.next():
                    if len(self.branches) or self._requests.running > 1:
                        raise
                    raise _too_long(error) from error
            await anyio.lowlevel.checkpoint()

    async def make_room(self, room: Room) -> bool:
        """Overflow policy of all generations: cached conversations give up their cells until some are free. The first
        ones may share all of theirs with later turns, which frees none. Returns whether `room.cells` shrank."""
        lacked = room.cells
        while room.cells and await self._evict_one():
            await room.refresh()
        return room.cells < lacked

    async def _evict_one(self) -> bool:
        if self.branches.close_idle():
            return True
        offloader = core_of(self.context).offloader
        return self.cache.close_oldest() if offloader is None else await offloader.find(None, None)

    async def _made(
        self, reply_request: ReplyRequest, after: CachedConversation | None, calls_of: str
    ) -> tuple[PromptUpdate, int]:
        """Returns all tokens of the prompt, and how many of them come from `after`."""
        try:
            if after is None:
                return await self._prompt(reply_request, calls_of), 0
            state = handle_of(after.branch).state
            made = await self._prompt(reply_request, calls_of, state)
            return core_of(self.context).chat.encoder.whole(made, state), made.kept
        except ContextFull as error:
            raise _too_long(error) from error

    async def _read(
        self, update: PromptUpdate, begin: Begin, after: CachedConversation | None = None, kept: int = 0
    ) -> Prompted:
        """Makes a branch of these tokens and prefills those that are not cached."""
        core, reading = core_of(self.context), Reading(begin)
        offloader = core.offloader
        fork = None if after is None else await self._forked(after)
        source = None if fork is None else Source(fork.id, kept)
        needs = PromptNeeds(
            most_cells(core.model.info),
            core.adapters.checked(self.adapter),
            underway=offloader.underway if offloader else None,
        )

        async def read() -> Prompted:
            if fork is None:
                return await compute()
            await handle_of(fork).ready()  # its cells may have been taken while there was no room
            with handle_of(fork).state.in_use():
                return await compute()

        async def compute() -> Prompted:
            async with PromptPrefill(core, update, source, needs=needs) as prompt:
                await reading.finish(prompt, update)
                if fork is not None and prompt.branch == fork.id:
                    return Prompted(self, fork, prompt.reused)
                return Prompted(self, new_branch(core, prompt.branch, None, self, prompt.reused), prompt.reused)

        async def read_in_turn() -> Prompted:
            return await (read() if offloader is None else offloader.retry(read, needs.lacking, waits=True))

        prompted = None
        try:
            prompted = await self.with_room(read_in_turn)
        finally:
            if fork is not None and (prompted is None or prompted.branch is not fork):
                fork.close()
        return prompted

    async def _forked(self, kept: CachedConversation) -> Branch | None:
        """Forks a cached conversation, which pins its cells. Returns None if the conversation was closed meanwhile."""
        with suppress(BranchClosed):
            return await self.with_room(lambda: kept.branch.fork())
        return None

    async def _prompt(
        self, reply_request: ReplyRequest, calls_of: str, after: BranchState | None = None
    ) -> PromptUpdate:
        """Renders and tokenizes the messages, with the assistant's turn opened behind them."""
        return await core_of(self.context).chat.encoder.prompt(
            list(reply_request.messages),
            after=after,
            tools=(reply_request.tools or None) if after is None else None,
            template=reply_request.template or None,
            speaks=True,
            calls_of=calls_of,
        )

    def _known(self, reply_request: ReplyRequest) -> tuple[ReplyRequest, CachedConversation | None]:
        """Finds the longest cached conversation with the same beginning; the returned request has only the messages
        after it."""
        names = prefix_keys(reply_request.messages, _about(reply_request.tools, reply_request.template))
        for count in range(len(names) - 1, 0, -1):
            known = self.cache.kept(names[count - 1]) or self._warm.get(names[count - 1])
            if known is not None and not reasoning_conflicts(reply_request.messages[:count], known.branch.messages):
                last, rest = messages_of(known.branch)[-1], reply_request.messages[count:]
                return replace(
                    reply_request, messages=with_ids_of(rest, reply_request.messages[count - 1], last)
                ), known
        return reply_request, None


def messages_of(branch: Branch) -> list[Mapping[str, Any]]:
    """Messages of a branch, as chat templates take them."""
    state = handle_of(branch).state
    return [entry.message for entry in state.conversation.with_reply(state.tokens, handle_of(branch).core.chat.reader)]


def _check_begun(reply_request: ReplyRequest) -> None:
    """Raises ApiError for a schema together with a message that the client has begun."""
    last = reply_request.messages[-1]
    if reply_request.schema is not None and last["role"] == "assistant" and text_of(last).strip():
        raise ApiError(
            "invalid",
            "the last message is the assistant's, which it goes on with, and a schema holds whole messages; end with "
            "a user's message, or leave the schema out",
        )


def _too_long(error: Exception) -> ApiError:
    """Error for a prompt that cannot fit into the cache."""
    return ApiError("invalid", advised(str(error)), "context_full")


def _about(tools: Sequence[Mapping[str, Any]] | None, template: Mapping[str, Any]) -> object:
    return [list(tools or ()), dict(template)]
