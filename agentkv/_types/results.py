"""Results of branch methods: generations, streamed tokens, choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, cast

from typing_extensions import TypeVar

Out_co = TypeVar("Out_co", covariant=True, default=str)

FinishReason = Literal["eos", "stop", "length", "context_full", "cancelled", "repetition"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a generation.

    Attributes:
        prompt_tokens: tokens of the branch before the generation.
        completion_tokens: generated tokens, including an end-of-text token and those of a stop string.
    """

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Sum of `prompt_tokens` and `completion_tokens`."""
        return self.prompt_tokens + self.completion_tokens


class TopLogprob(NamedTuple):
    """One of the most likely tokens at a position.

    Attributes:
        id: id of the token.
        text: text of the token by itself; bytes that are not UTF-8 (a part of a character) replaced.
        logprob: natural logarithm of its probability under the model itself.
    """

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Generation(Generic[Out_co]):
    """The result of one `Branch.generate`; frozen. `Generation[T]` for an `output` of type T; plain text is str.

    Attributes:
        text: the generated text; the stop string and special tokens are left out, bytes that are not UTF-8 replaced.
            It has whole characters: an incomplete one belongs to the generation that completes it.
        tokens: every token that entered the branch, including end of text and those of a stop string.
        logprobs: natural logarithm of the model's own probability of each token, one per token.
        finish_reason: "eos", "stop" (a stop string, or an `output` that nothing may follow), "length" (max_tokens),
            "context_full" or "cancelled"; "repetition" of an agent's message whose end is one period again and again.
        usage: token counts.
        seed: the seed used; None when sampling was greedy and none was given.
        top_logprobs: per token, the requested number of most likely tokens at its position, best first; the lower id
            first where two tie. The token itself need not be among them. Empty where none were requested.
        seconds: duration since the step loop began it, in seconds; a wait for room included.
        first_token_seconds: time to the first token, in seconds; 0 where none came.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    usage: Usage
    seed: int | None = None
    top_logprobs: list[tuple[TopLogprob, ...]] = field(default_factory=list)
    seconds: float = field(default=0.0, repr=False, compare=False)
    first_token_seconds: float = field(default=0.0, repr=False, compare=False)
    _value: Any = field(default=None, repr=False, compare=False)
    _fault: Exception | None = field(default=None, repr=False, compare=False)

    @property
    def output(self) -> Out_co:
        """The text, or for an `output` type its value. After a resumed generation, the value of the whole output.

        Raises:
            OutputIncomplete: the generation ended early (`finish_reason` "length", "context_full" or "cancelled").
            OutputInvalid: the streamed text is no value of the type.
        """
        if self._fault is not None:
            raise self._fault
        return cast(Out_co, self._value)

    def __str__(self) -> str:
        return self.text


def fault_of(generation: Generation[Any]) -> Exception | None:
    """The error that `Generation.output` raises; None if it has a value."""
    return generation._fault


def joined(parts: Sequence[Generation[Out_co]]) -> Generation[Out_co]:
    """One generation of those that continued each other."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    tokens = [token for part in parts for token in part.tokens]
    return replace(
        last,
        text="".join(part.text for part in parts),
        tokens=tokens,
        logprobs=[logprob for part in parts for logprob in part.logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        usage=Usage(first.usage.prompt_tokens, len(tokens)),
        seconds=sum(part.seconds for part in parts),
        first_token_seconds=next((part.first_token_seconds for part in parts if part.tokens), 0.0),
    )


@dataclass(frozen=True, slots=True)
class Token:
    """One item of a stream.

    Attributes:
        id: id of the token; -1 for text that was withheld as a possible stop string and released by the end of the
            generation without a further token.
        text: the text that it adds; may be empty. The texts of a stream add up to `Generation.text`; for a stream that
            is left early, without a possible stop string at the end.
        logprob: natural logarithm of the model's own probability of the token.
        index: 0 for the first token of the generation.
        top_logprobs: as in `Generation.top_logprobs`, of this token.
    """

    id: int
    text: str
    logprob: float
    index: int
    top_logprobs: tuple[TopLogprob, ...] = ()

    def __str__(self) -> str:
        return self.text


class Choice(str):
    """The choice that `Branch.select` picked: a str, with its scores.

    Attributes:
        text: the choice itself, as a plain str.
        index: its index among the choices.
        logprob: natural logarithm of its probability as a continuation of the branch (summed over its tokens).
        logprobs: `logprob` of every choice, in the order given.
    """

    __slots__ = ("index", "logprob", "logprobs")

    index: int  # type: ignore[assignment]  # str.index is of no use on a choice
    logprob: float
    logprobs: list[float]

    def __new__(cls, text: str, index: int, logprobs: list[float]) -> Choice:
        choice = super().__new__(cls, text)
        choice.index = index
        choice.logprobs = logprobs
        choice.logprob = logprobs[index]
        return choice

    @property
    def text(self) -> str:
        """The choice as a plain str."""
        return str.__str__(self)
