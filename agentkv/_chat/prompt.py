"""Converts prompts (text, ids or messages) to tokens; long work runs off the event loop."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from agentkv_runtime.errors import TemplateTimeout

from .._aio.lock import Semaphore
from .._types.checks import Prompt, checked_ids, checked_items, checked_text
from .._types.errors import ContextFull, InvalidInput, PositionsExhausted
from .._types.show import preview
from .conversation import Conversation, Entry, Transcript
from .messages import characters_in, checked_messages, checked_template, checked_tools, is_messages
from .rerender import ConversationRenderer, PromptUpdate, RenderBudget
from .template import MOST_SECONDS, TemplateRenderer
from .tool_results import in_call_order

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

    from .reply import ReplyReader

T = TypeVar("T")

_SHORT = 8192  # characters that are encoded on the event loop, which takes some 10 ms
_AT_ONCE = 0.02  # seconds that a template may run on the event loop
_WORKERS = 2


class PromptEncoder:
    """Converts prompts to tokens, for one model and cache. Used on one event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat: TemplateRenderer,
        reader: ReplyReader,
        vocab_size: int,
        capacity: int,
        max_positions: int | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._reader = reader
        self._vocab_size = vocab_size
        self._capacity = capacity
        self._max_positions = max_positions
        self._workers = Semaphore(_WORKERS)
        self._unlimited = anyio.CapacityLimiter(math.inf)  # the workers above are the limit

    async def prompt(
        self,
        prompt: Prompt,
        *,
        after: Transcript | None = None,
        tools: object = None,
        template: object = None,
        speaks: bool = False,
        calls_of: str = "",
    ) -> PromptUpdate:
        """The update that a prompt makes to a new branch, or to one whose history is `after` when this returns: at
        least one token. With `speaks` the assistant speaks next, regardless of the last role; `calls_of` is the seed of
        its calls' ids.

        Raises InvalidInput; ContextFull if it exceeds the empty cache; PositionsExhausted if it exceeds the model's
        positions.
        """
        variables = checked_template(template, is_messages(prompt))
        if tools is not None and not is_messages(prompt):
            raise InvalidInput("tools need a prompt of chat messages: the chat template spells them out")
        if is_messages(prompt):
            extend = partial(ConversationRenderer.extend, messages=checked_messages(prompt), template=variables)
            extend = partial(extend, speaks=speaks, calls_of=calls_of, order=partial(_order, whole=after is None))
            return await self._conversation(extend, tools, after)
        if isinstance(prompt, str | bytes):
            tokens = await self._text(checked_text(prompt, "the prompt"))
            if tokens and not after:
                tokens = self._tokenizer.after_bos(tokens)
        else:
            tokens = self._ids(prompt)
        if not tokens:
            raise InvalidInput("the prompt is empty; give at least one token, or make an empty branch with `branch()`")
        if not after:
            self._check_count(len(tokens), "")
        return PromptUpdate(len(after or ()), tokens, None)

    async def opening(self, instructions: str, tools: object, template: object) -> PromptUpdate:
        """The common beginning of all conversations with these instructions and tools: no tokens if the chat template
        writes all of it behind the question. Raises as `prompt`."""
        messages = [{"role": "system", "content": instructions}] if instructions else []
        extend = partial(
            ConversationRenderer.extend, messages=messages, template=checked_template(template, known=True)
        )
        return await self._conversation(extend, tools, None)

    def whole(self, update: PromptUpdate, after: Transcript) -> PromptUpdate:
        """The whole resulting history of `update` on `after`, as an update of an empty branch. Raises as `prompt`."""
        tokens = [*after.tokens[: update.kept], *update.added]
        self._check_count(len(tokens), "")
        return PromptUpdate(0, tokens, update.conversation)

    async def turn(self, after: Transcript) -> PromptUpdate:
        """The update that opens the assistant's turn on a branch that ends with another's message; after its own
        message, it removes the closing of that. Raises as `prompt`."""
        extend = partial(ConversationRenderer.extend, messages=[], template={}, speaks=True)
        return await self._messages(0, extend, after, after.conversation)

    async def choices(self, choices: object) -> tuple[list[str], list[list[int]]]:
        """Checked texts of choices, and the tokens of each. Raises InvalidInput, ContextFull."""
        if not isinstance(choices, list | tuple) or not choices:
            raise InvalidInput(f"choices is {preview(choices)}, but it must be a list of at least one str")
        items = checked_items(choices, "choices")
        for choice in items:
            if not isinstance(choice, str | bytes) or not choice:
                raise InvalidInput(f"choices has {preview(choice)}, but each must be a str with at least 1 character")
        texts = [checked_text(choice, "choices") for choice in items]
        return texts, [await self._text(text) for text in texts]

    async def _text(self, text: str) -> list[int]:
        return await self._beside(len(text), lambda: self._encoded(text))

    def _encoded(self, text: str) -> list[int]:
        self._check_fits(text)
        return self._tokenizer.encode(text)

    async def _conversation(
        self, extend: partial[PromptUpdate], tools: object, after: Transcript | None
    ) -> PromptUpdate:
        begun = Conversation(tools=checked_tools(tools))
        made = await self._messages(characters_in(extend.keywords["messages"]), extend, after, begun)
        if not after:
            self._check_count(len(made.added), "")
        return made

    async def _messages(
        self,
        size: int,
        extend: Callable[[ConversationRenderer], PromptUpdate],
        after: Transcript | None,
        begun: Conversation,
    ) -> PromptUpdate:
        while True:
            revision = after.revision if after is not None else 0
            conversation, log = (begun, array("i")) if after is None else (after.conversation, after.tokens[:])
            parts = [conversation.tools, [entry.message for entry in conversation.entries]]
            made = await self._render(
                size + sum(map(characters_in, parts)), partial(self._continued, conversation, log, extend)
            )
            if after is None or after.revision == revision:  # a branch may change in the meantime
                return made

    def _continued(
        self,
        conversation: Conversation,
        log: array[int],
        extend: Callable[[ConversationRenderer], PromptUpdate],
        seconds: float,
    ) -> PromptUpdate:
        clock = RenderBudget(seconds)
        check = partial(self._check_fits, held=len(log))  # tokens in the branch have their cells
        return extend(ConversationRenderer(self._chat, self._tokenizer, self._reader, conversation, log, clock, check))

    async def _render(self, size: int, render: Callable[[float], T]) -> T:
        if size <= _SHORT:
            try:
                return render(_AT_ONCE)
            except TemplateTimeout:
                pass  # a slow template runs off the loop
        try:
            return await self._beside(_SHORT + 1, lambda: render(MOST_SECONDS))
        except TemplateTimeout as error:
            raise InvalidInput(str(error)) from error

    async def _beside(self, size: int, work: Callable[[], T]) -> T:
        if size <= _SHORT:
            return work()
        # A cancelled task does not wait: the abandoned work changes nothing and ends by itself.
        async with self._workers:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._unlimited)

    def _ids(self, prompt: Any) -> list[int]:
        if hasattr(type(prompt), "__len__"):
            try:
                count = len(prompt)
            except Exception as error:
                raise InvalidInput(f"the prompt has no length: {type(error).__name__}: {error}") from error
            self._check_count(count)
        return checked_ids(prompt, self._vocab_size)

    def _check_fits(self, text: str, held: int = 0) -> None:
        if len(text) > _SHORT:
            self._check_count(self._tokenizer.fewest_tokens(text) - held)

    def _check_count(self, tokens: int, at_least: str = " or more") -> None:
        prompt = f"the prompt has {tokens} tokens{at_least}"
        if tokens > self._capacity:
            raise _hopeless(
                f"{prompt}, but the cache has {self._capacity} cells; give less, or open the Context with a larger "
                "capacity"
            )
        if self._max_positions is not None and tokens > self._max_positions:
            raise PositionsExhausted(f"{prompt}, but the model has {self._max_positions} positions; give less")


def _hopeless(message: str) -> ContextFull:
    error = ContextFull(message)
    error.hopeless = True
    return error


def _order(entries: Sequence[Entry], there: int, *, whole: bool) -> list[int]:
    """Order of entries with tool results behind their calls. Raises InvalidInput."""
    unread = {call.id for entry in entries if entry.parsed for call in entry.parsed.calls if call.error and call.id}
    return in_call_order([entry.message for entry in entries], there=None if whole else there, unread=unread)
