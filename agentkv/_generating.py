"""The verbs of a branch that have the model speak: whole generations, and streams of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from typing_extensions import TypeForm, TypeVar

from ._attempts import generated
from ._extending import open_turn
from ._generation import Generation
from ._inputs import checked_count
from ._request import MOST_TOKENS, GenerationRequest
from ._speculation import INHERIT, Inherit, Speculative
from ._stream import DEFAULT_BUFFER, Keep, TokenStream
from ._thinking import Thinking

if TYPE_CHECKING:
    from ._history import History
    from ._home import Home
    from ._loop import StepLoop
    from ._sampling import Sampling
    from .output.constraint import Constraint
    from .output.grammar import GrammarSource

Out = TypeVar("Out", default=str)

MOST_STREAMS = 2**63 - 1


class How(TypedDict, total=False):
    """What both verbs take beside `output`, for type checkers."""

    max_tokens: int
    stop: str | Sequence[str] | None
    sampling: Sampling | None
    speculative: Speculative | Inherit | None
    top_logprobs: int
    thinking: Thinking


class Generating:
    """What a branch is as far as the model speaks on it."""

    __slots__ = ()

    _history: History
    _home: Home
    _id: int
    _loop: StepLoop

    @property
    def _makes_room(self) -> bool:
        raise NotImplementedError

    @overload
    async def generate(
        self, *, output: TypeForm[Out] = ..., output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...
    @overload
    async def generate(
        self, *, output: GrammarSource[Out] | Constraint, output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...

    async def generate(
        self,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        sampling: Sampling | None = None,
        speculative: Speculative | Inherit | None = INHERIT,
        top_logprobs: int = 0,
        thinking: Thinking = None,
        output: Any = str,
        output_retries: int = 1,
    ) -> Generation[Any]:
        """Samples tokens until something ends it. They all enter the history.

        Behind messages the assistant speaks: where the last one is a system's or developer's, its turn is opened first,
        and where the last one is its own, it goes on with that.

        Args:
            max_tokens: at most this many tokens, at least 1.
            stop: strings that end the generation; the text leaves them out, the history keeps them.
            sampling: how tokens are drawn; None is greedy.
            speculative: a strategy of `kv.spec` or your own, or None for none; left out, as the Context does. The
                tokens are the same, in fewer forwards.
            top_logprobs: also report so many of the most likely tokens in the place of each token, at most 20.
            thinking: of a model that reasons, how many tokens of its message may be reasoning; they count for
                `max_tokens` as all do. At so many the thought is closed, after a word that says so, and the answer
                follows. False, as 0, closes it at once, or writes an empty one; True sets no bound; None leaves all as
                it is. Switches of the chat template are set before: `Context.branch(template=...)`. A typed `output`
                is what comes behind the thought; with None it comes at once.
            output: what may be said. `str` is any text. A type is written as JSON (a choice of strings, such as
                `Literal["yes", "no"]` or an Enum, as the bare word): a pydantic model, a dataclass, a TypedDict, int,
                list[...], a union ... Else a kv.Regex, kv.JsonSchema or kv.Grammar, or a kv.Constraint of your own.
                `Generation.output` is the value. An output that was cut short (by `max_tokens`, a cancellation, a full
                cache, or a rollback into it) goes on when the same is asked for again. finish_reason is "stop" where
                nothing may follow, "eos" where the model ends what may end.
            output_retries: how often a value that the type's validators refuse is asked for again. The branch goes
                back to where it was, and the tokens are drawn anew with another seed, by the model's own distribution
                where it was greedy.

        Raises:
            InvalidInput: an argument out of range, a branch without tokens, or an `output` that no grammar holds.
            OutputInvalid: the last value was refused as well; the branch is as it was.
            PositionsExhausted: the branch is at the model's last position.
            ModelError: a strategy that this is the first use of cannot be opened; DraftMismatch where it was not made
                for this model.
            StepFailed: a forward failed, or the strategy or the constraint did; the branch keeps the tokens that were
                made before it.
        """
        self._check_started("generate")
        retries = checked_count(output_retries, "output_retries", 0)
        request = GenerationRequest.checked(
            self._id,
            max_tokens=max_tokens,
            stop=stop,
            sampling=sampling,
            speculative=speculative,
            top_logprobs=top_logprobs,
            thinking=thinking,
            output=output,
            home=self._home,
            wait_for_room=self._makes_room,
        )
        await request.prepare()
        await open_turn(self)
        await self._ready("generate")
        return await generated(self, request.after(self._history), retries)

    @overload
    def stream(
        self, *, output: TypeForm[Out] = ..., buffer: int = ..., keep: Keep = ..., **how: Unpack[How]
    ) -> TokenStream[Out]: ...
    @overload
    def stream(
        self, *, output: GrammarSource[Out] | Constraint, buffer: int = ..., keep: Keep = ..., **how: Unpack[How]
    ) -> TokenStream[Out]: ...

    def stream(
        self,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        sampling: Sampling | None = None,
        speculative: Speculative | Inherit | None = INHERIT,
        top_logprobs: int = 0,
        thinking: Thinking = None,
        output: Any = str,
        buffer: int = DEFAULT_BUFFER,
        keep: Keep = "read",
    ) -> TokenStream[Any]:
        """As `generate`, token by token: `async with branch.stream() as tokens: async for token in tokens: ...`.

        Leaving the block stops the generation, and the branch keeps exactly the tokens that were read, or with
        `keep="made"` all that were made. A reader that falls `buffer` tokens behind pauses its own branch only.
        A value that its type refuses is not asked for again, since it was read: `generation.output` raises.
        """
        self._check_started("stream")
        limit = checked_count(buffer, "buffer", 1, MOST_TOKENS)
        request = GenerationRequest.checked(
            self._id,
            max_tokens=max_tokens,
            stop=stop,
            sampling=sampling,
            speculative=speculative,
            top_logprobs=top_logprobs,
            thinking=thinking,
            output=output,
            home=self._home,
            wait_for_room=self._makes_room,
            buffer=limit,
        )
        return TokenStream(self, request, limit, keep)

    async def draw_as(self, stream: int) -> None:
        """Takes its random numbers from the stream of this number from now on, and its forks theirs from those derived
        from it: the same prompt, seed and stream then give the same tokens, however many branches there were before.

        Raises:
            InvalidInput: `stream` is not in 0 <= stream < 2**63.
        """
        number = checked_count(stream, "stream", 0, MOST_STREAMS)
        await self._ready()
        await self._loop.call(lambda engine: engine.set_stream(self._id, number, 0))

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        raise NotImplementedError

    def _check_free(self) -> None:
        raise NotImplementedError

    def _check_started(self, verb: str) -> None:
        raise NotImplementedError

    async def _ready(self, verb: str | None = None) -> None:
        raise NotImplementedError
