"""What all doors of one server share: the Context, who may use it now, and the conversations that wait."""

from __future__ import annotations

import time
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
from .._context.prefill import Prefilling, Source
from .._types.errors import BranchClosed, ContextFull, OutOfMemory, TooManyBranches
from .admission import Admission, seconds_asked
from .branches.held import Branches
from .checks import check_reply
from .completion import Asked
from .conversations import Kept, Shelf, contradicts, digest_of, names_of
from .fitting import fitted
from .http.errors import Refused, about, advised
from .http.ignored import Ignored
from .metrics import Metrics
from .prompts import Begin, Reading, untold
from .settings import Settings

if TYPE_CHECKING:
    from .._chat.rerender import Continuation
    from .._context.context import Context
    from .._context.overflow import Room
    from .._state.branch_state import History
    from .reply import Written

T = TypeVar("T")


class Prompted:
    """A branch that holds a prompt. It is closed with its block, unless it is kept.

    Attributes:
        branch: with the prompt at its end.
        cached: tokens of the prompt that were in the cache already.
        messages: those that a client sent; nothing for a text.
    """

    def __init__(self, server: Server, branch: Branch, cached: int, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        self._shelf = server.shelf
        self._kept = False
        self.branch = branch
        self.cached = cached
        self.messages = messages

    def keep(self, name: str, *, promised: bool, note: object = None) -> None:
        """It waits to be gone on with, under this name; `promised` to its client, or as long as there is room."""
        self._kept = True
        self._shelf.put(name, self.branch, promised=promised, note=note)

    def leave(self) -> None:
        """The block has ended."""
        if not self._kept:
            self.branch.close()


class Server:
    """One Context behind any number of protocols."""

    def __init__(self, context: Context, settings: Settings) -> None:
        self.context = context
        self.settings = settings
        self.admission = Admission(settings.most_running, settings.most_waiting)
        self.shelf = Shelf(settings.most_kept, settings.offload)
        self.branches = Branches(settings.most_branches, settings.branch_seconds, settings.lease_seconds)
        self.began = int(time.time())
        self._warm: dict[str, Kept] = {}  # held as long as the server runs
        self.metrics = Metrics(self)
        self.ignored = Ignored(self.metrics.ignored, settings.strict)

    @property
    def fingerprint(self) -> str:
        """Of the model."""
        return "fp_" + self.context.model_info.fingerprint.rpartition(":")[2][:12]

    def check_model(self, name: str, known: str | None = None) -> None:
        """Raises Refused for a name that is not the model's. It answers to those that begin with `known` as well, by
        which clients ask for a second model without being told to."""
        names = self.settings.names
        if name in names or self.settings.any_name:
            return
        if known is not None and name.startswith(known) and not self.ignored.strict:
            self.ignored.note(f"models called {known}...", f"{names[0]} answers", name)
            return
        what = f"there is no model {name!r}; there is {', '.join(names)}"
        raise Refused("missing", what, "model_not_found", "model")

    def checked(self, asked: Asked) -> Asked:
        """The same, as far as the model can do it. Raises Refused for what it cannot."""
        asked = replace(asked, call_threshold=self.settings.call_threshold)
        return fitted(asked, core_of(self.context), self.ignored)

    @asynccontextmanager
    async def admitted(self, headers: Mapping[str, str]) -> AsyncIterator[None]:
        """A place for one request. Raises Refused, TimeoutError."""
        seconds = seconds_asked(headers.get("x-request-timeout"), self.settings.most_seconds)
        async with self.admission.place(seconds):
            yield

    @asynccontextmanager
    async def prompted(self, asked: Asked, after: Kept | None = None, begin: Begin = untold) -> AsyncIterator[Prompted]:
        """A branch that holds what was asked, for the length of a block: it goes on from the tokens of `after`, or else
        of a conversation that waits and begins alike. `begin` is called once nothing is wrong with what was asked, and
        the prompt has room.

        Where the cache lacks room, conversations that wait give theirs up, or the request waits for another's end.
        """
        with about(asked.given_as):
            messages = checked_messages(asked.messages)
            before = [] if after is None else messages_of(after.branch)
            places = in_call_order([*before, *messages])
            messages = [messages[place - len(before)] for place in places if place >= len(before)]
            asked = replace(asked, messages=messages)
            _check_begun(asked)
            calls_of = digest_of([*before, *messages])
            asked, after = (asked, after) if after is not None else self._known(asked)
            made, kept = await self._made(asked, after, calls_of)
        await check_reply(core_of(self.context), asked, made)
        with about(asked.given_as):
            prompted = await self._read(made, begin, after, kept)
        prompted.messages = messages
        try:
            yield prompted
        finally:
            prompted.leave()

    @asynccontextmanager
    async def begun(self, prompt: str | Sequence[int], given_as: str, begin: Begin = untold) -> AsyncIterator[Prompted]:
        """A branch that holds a text, or token ids, for the length of a block: the parameter `given_as`. Makes room and
        calls `begin` as `prompted` does.

        Control tokens that the text spells are parsed: it is the client's own.
        """
        with about(given_as):
            try:
                made = await core_of(self.context).chat.encoding.prompt(prompt)
            except ContextFull as error:
                raise _too_long(error) from error
            prompted = await self._read(made, begin)
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
        """The tokens of a conversation, as a branch would have them; with `reply` the assistant speaks next.

        Raises InvalidInput.
        """
        tokenizer, variables = self.context.tokenizer, checked_template(template, known=True)
        render = tokenizer._render_reply if reply else partial(tokenizer._render, reply=False)

        def spelled() -> list[int]:
            return tokenizer._tokenizer.encode_rendered(render(messages, tools or None, variables=variables))

        return await anyio.to_thread.run_sync(spelled, abandon_on_cancel=True)

    def remember(self, prompted: Prompted, asked: Asked, written: Written) -> None:
        """Keeps a conversation for a client that comes back with all of its messages, as long as there is room. Not
        one whose branch holds more than its client was told: a stop string, half a call, or the space before a word
        that was cut off."""
        if written.stopped_by is not None or any(call.error is not None for call in written.message.calls):
            return
        if written.cut and written.generation.text != written.generation.text.rstrip():
            return
        messages, message = prompted.messages, written.message.as_openai()
        if messages[-1]["role"] == "assistant":  # it went on with that
            message["content"] = text_of(messages[-1]).rstrip() + (message["content"] or "")
            messages = messages[:-1]
        names = names_of([*messages, message], _about(asked.tools, asked.template))
        prompted.keep(names[-1], promised=False)

    def warm(self, branch: Branch) -> None:
        """Holds a branch for all conversations that begin as it does."""
        conversation = handle_of(branch).state.conversation
        about = _about(conversation.tools, conversation.template)
        if names := names_of([message.as_openai() for message in branch.messages], about):
            self._warm[names[-1]] = Kept(branch, promised=True)

    async def with_room(self, verb: Callable[[], Awaitable[T]]) -> T:
        """Runs a verb, and again each time that there is more room."""
        while True:
            ended = self.admission.ended
            try:
                return await verb()
            except TooManyBranches:
                if (
                    not (self.branches.close_idle() or self.shelf.free_branch())
                    and self.admission.ended == ended  # nobody left meanwhile
                    and not await self.admission.another_leaves()
                ):
                    raise
            except (ContextFull, OutOfMemory) as error:
                if getattr(error, "hopeless", False):
                    raise _too_long(error) from error
                if (
                    not await self._give_way()
                    and self.admission.ended == ended
                    and not await self.admission.another_leaves()
                ):
                    if len(self.branches) or self.admission.running > 1:
                        raise
                    raise _too_long(error) from error
            await anyio.lowlevel.checkpoint()

    async def make_room(self, room: Room) -> bool:
        """The overflow policy of what is generated here: conversations that wait give up their cells, until one is
        free. The first to go may share all of its cells with later turns."""
        lacked = room.cells
        while room.cells and await self._give_way():
            await room._refresh()
        return room.cells < lacked

    async def _give_way(self) -> bool:
        return self.branches.close_idle() or await self.shelf.make_room()

    async def _made(self, asked: Asked, after: Kept | None, calls_of: str) -> tuple[Continuation, int]:
        """All tokens of the prompt, and how many of them are those of what it goes on from."""
        try:
            if after is None:
                return await self._prompt(asked, calls_of), 0
            history = handle_of(after.branch).state
            made = await self._prompt(asked, calls_of, history)
            return core_of(self.context).chat.encoding.whole(made, history), made.kept
        except ContextFull as error:
            raise _too_long(error) from error

    async def _read(self, made: Continuation, begin: Begin, after: Kept | None = None, kept: int = 0) -> Prompted:
        """A branch of these tokens, of which those are computed that the cache does not have."""
        home, reading = core_of(self.context), Reading(begin)
        fork = None if after is None else await self._forked(after)
        source = None if fork is None else Source(fork.id, kept)

        async def read() -> Prompted:
            async with Prefilling(home, made, source) as prompt:
                await reading.finish(prompt, made)
                if fork is not None and prompt.branch == fork.id:
                    return Prompted(self, fork, prompt.reused)
                return Prompted(self, new_branch(home, prompt.branch, None, self, prompt.reused), prompt.reused)

        prompted = None
        try:
            prompted = await self.with_room(read)
        finally:
            if fork is not None and (prompted is None or prompted.branch is not fork):
                fork.close()
        return prompted

    async def _forked(self, kept: Kept) -> Branch | None:
        """A fork, which holds its cells as long as it is there. None where it gave way to others meanwhile."""
        with suppress(BranchClosed):
            return await self.with_room(lambda: kept.branch.fork())
        return None

    async def _prompt(self, asked: Asked, calls_of: str, after: History | None = None) -> Continuation:
        """The messages as tokens, behind which the assistant speaks."""
        return await core_of(self.context).chat.encoding.prompt(
            list(asked.messages),
            after=after,
            tools=(asked.tools or None) if after is None else None,
            template=asked.template or None,
            speaks=True,
            calls_of=calls_of,
        )

    def _known(self, asked: Asked) -> tuple[Asked, Kept | None]:
        """What is still to be said to the longest conversation that waits and begins alike."""
        names = names_of(asked.messages, _about(asked.tools, asked.template))
        for count in range(len(names) - 1, 0, -1):
            known = self.shelf.kept(names[count - 1]) or self._warm.get(names[count - 1])
            if known is not None and not contradicts(asked.messages[:count], known.branch.messages):
                last, rest = messages_of(known.branch)[-1], asked.messages[count:]
                return replace(asked, messages=with_ids_of(rest, asked.messages[count - 1], last)), known
        return asked, None


def messages_of(branch: Branch) -> list[Mapping[str, Any]]:
    """The messages of a branch, as templates get them."""
    history = handle_of(branch).state
    return [entry.message for entry in history.conversation.with_reply(history.log, handle_of(branch).core.chat.reader)]


def _check_begun(asked: Asked) -> None:
    """Raises Refused where a schema is to hold a message that its client has begun."""
    last = asked.messages[-1]
    if asked.schema is not None and last["role"] == "assistant" and text_of(last).strip():
        raise Refused(
            "invalid",
            "the last message is the assistant's, which it goes on with, and a schema holds whole messages; end with "
            "a user's message, or leave the schema out",
        )


def _too_long(error: Exception) -> Refused:
    """A prompt that does not fit into the cache, whatever else leaves it."""
    return Refused("invalid", advised(str(error)), "context_full")


def _about(tools: Sequence[Mapping[str, Any]] | None, template: Mapping[str, Any]) -> object:
    return [list(tools or ()), dict(template)]
