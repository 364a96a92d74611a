"""Protocol of vLLM: OpenAI's completions, with token ids in and out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from agentkv_runtime.formats.json_style import SPACING
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from .._types.errors import InvalidInput, ModelError
from .._types.sampling import Sampling
from ..output.json_schema import styled
from .errors import RetryableError, bad_response, cut_off, event_error
from .protocol import (
    Count,
    EndEvent,
    GenerateRequest,
    LogitsEvent,
    Logprob,
    PrefillEvent,
    Scores,
    TokenId,
    TokensEvent,
    Top,
    ended,
    made,
)
from .rng import seed_at
from .server_info import ServerInfo

if TYPE_CHECKING:
    from .http import ServerConnection

_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True, "add_special_tokens": False}
_NAMED = "token_id:"
_FEWEST_LIKELY = 20  # log-probabilities per position that every server reports
_ENDS = frozenset({"stop", "length"})

# Log-probabilities of a position by the names of tokens: {"token_id:17": -0.3}.
_Place = dict[Annotated[str, Field(pattern=rf"^{_NAMED}[0-9]{{1,9}}$")], float]


class _Model(TypedDict):
    id: str
    max_model_len: Annotated[int, Field(gt=0, lt=2**31)]


class _RootedModel(_Model, total=False):
    root: str | None


class _Models(TypedDict):
    data: Annotated[list[_RootedModel], Field(min_length=1)]


class _Cached(TypedDict, total=False):
    cached_tokens: Count | None


class _UsedPrompt(TypedDict):
    prompt_tokens: Count


class _Usage(_UsedPrompt, total=False):
    prompt_tokens_details: _Cached | None


class _Logprobs(TypedDict, total=False):
    token_logprobs: list[Logprob] | None
    top_logprobs: list[_Place] | None


class _Choice(TypedDict, total=False):
    index: Literal[0]
    text: str | None
    token_ids: list[TokenId] | None
    logprobs: _Logprobs | None
    finish_reason: str | None


class _Told(TypedDict, total=False):
    error: dict[str, Any]
    usage: _Usage | None
    choices: list[_Choice]


_MODELS, _TOLD = TypeAdapter(_Models), TypeAdapter(_Told)


class VLLM:
    """Protocol of a vLLM server. `model` is the name of the model there; None for the first."""

    can_resume = False  # its grammars and penalties begin with the request

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._likely: int | None = None
        self._vocab_size = 0
        self._most = 0  # tokens of a branch

    def knows(self, facts: ServerInfo, vocab_size: int) -> None:
        """Sets the model's name, positions, vocabulary size, and number of log-probabilities for `logits`."""
        self._model, self._likely, self._most = facts.model, facts.likely, facts.max_positions
        self._vocab_size = vocab_size

    async def facts(self, http: ServerConnection) -> ServerInfo:
        """Facts about the server's model. Raises ModelError for an unknown model or a server without token ids."""
        served = {each["id"]: each for each in (await http.get("models", _MODELS))["data"]}
        name = self._model or next(iter(served))
        if name not in served:
            raise ModelError(f"{http.host} has no model {name!r}; it has {', '.join(served)}")
        likely = await self._most_likely(http, name)
        root = served[name].get("root")
        folder = Path(root) if root and _has_tokenizer(root) else None
        return ServerInfo(name, served[name]["max_model_len"], folder=folder, likely=likely)

    async def generate(
        self, http: ServerConnection, ask: GenerateRequest
    ) -> AsyncGenerator[TokensEvent | PrefillEvent | EndEvent]:
        """Yields the tokens as they come, and an EndEvent last."""
        body = self._body(ask.tokens, ask.max_tokens, ask.top_logprobs) | _drawn(ask)
        body |= {"stop": list(ask.stop), "include_stop_str_in_output": True, "stop_token_ids": list(ask.ends)}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.output is not None:
            body["structured_outputs"] = _structured(ask.output)
        reason: str | None = None
        try:
            async with http.events("completions", body, _TOLD) as events:
                async for event in events:
                    if "error" in event:
                        raise event_error(http.host, event["error"], 500)
                    if event.get("usage"):
                        yield _fed(http, event)
                    for choice in event.get("choices", ()):
                        if choice.get("token_ids"):
                            yield _made(http, choice, ask.top_logprobs)
                        elif choice.get("text") and choice.get("token_ids") is None:
                            raise bad_response(http.host, "with text that has no token ids")
                        reason = choice.get("finish_reason") or reason
        except RetryableError:
            if reason is None:  # else only its usage is lost
                raise
        if reason is None:
            raise cut_off(http.host)
        yield ended(http.host, reason, _ENDS)

    async def prefill(self, http: ServerConnection, tokens: list[int]) -> PrefillEvent:
        """Has the server prefill these tokens by generating one token, which is dropped and needs a position."""
        return _fed(http, await self._complete(http, tokens[: self._most - 1], 0))

    async def logits(self, http: ServerConnection, tokens: list[int]) -> tuple[PrefillEvent, LogitsEvent]:
        """Log-probabilities (logits up to a constant) of as many tokens as the server reports; -inf for others."""
        told = await self._complete(http, tokens, self._likely)
        row = np.full(self._vocab_size, -np.inf, np.float32)
        for token, logprob in _place(http, told):
            if token < len(row):
                row[token] = logprob
        return _fed(http, told), LogitsEvent(row)

    async def select(
        self, http: ServerConnection, tokens: list[int], choices: list[list[int]]
    ) -> tuple[PrefillEvent, Scores]:
        """Log-probability of each choice, by one request for each distinct prefix of choices, all concurrent."""
        nexts: dict[tuple[int, ...], set[int]] = {}
        for choice in choices:
            for i, token in enumerate(choice):
                nexts.setdefault(tuple(choice[:i]), set()).add(token)
        asked = (self._next(http, [*tokens, *path], sorted(following)) for path, following in nexts.items())
        told = dict(zip(nexts, await asyncio.gather(*asked), strict=True))
        scores = [sum(told[tuple(choice[:i])][1][token] for i, token in enumerate(choice)) for choice in choices]
        fed = [each for each, _ in told.values()]
        cached = None if any(each.cached is None for each in fed) else sum(each.cached or 0 for each in fed)
        return PrefillEvent(sum(each.tokens for each in fed), cached), Scores(scores)

    async def _next(
        self, http: ServerConnection, tokens: list[int], following: list[int]
    ) -> tuple[PrefillEvent, dict[int, float]]:
        told = await self._complete(http, tokens, 0, logprob_token_ids=following)
        likely = dict(_place(http, told))
        if not likely.keys() >= set(following):
            raise bad_response(http.host, "without the log-probabilities that it was asked for")
        return _fed(http, told), likely

    async def _most_likely(self, http: ServerConnection, model: str) -> int | None:
        """Number of log-probabilities per position that the server reports; None for all.

        Raises ModelError for a server that reports no token ids.
        """
        for count in (-1, _FEWEST_LIKELY):
            try:
                told = await self._complete(http, [0], count, model=model)
            except InvalidInput as error:
                if count != -1 or not re.search("logprob", str(error)):
                    raise
            else:
                choices = told.get("choices")
                if not choices or not choices[0].get("token_ids"):
                    raise ModelError(f"{http.host} tells no token ids; it takes vLLM 0.10.2 or newer")
                return None if count == -1 else count
        raise AssertionError

    async def _complete(self, http: ServerConnection, tokens: list[int], likely: int | None, **more: Any) -> _Told:
        """Requests one token, the likeliest, with log-probabilities."""
        return await http.post("completions", self._body(tokens, 1, likely) | {"temperature": 0} | more, _TOLD)

    def _body(self, tokens: list[int], max_tokens: int, likely: int | None) -> dict[str, Any]:
        logprobs = -1 if likely is None else likely
        return {"model": self._model, "prompt": tokens, "max_tokens": max_tokens, "logprobs": logprobs, **_IDS}


def _has_tokenizer(folder: str) -> bool:
    try:
        return (Path(folder) / "tokenizer.json").is_file()
    except (OSError, ValueError):  # it is no path here
        return False


def _drawn(ask: GenerateRequest) -> dict[str, Any]:
    sampling: Sampling = ask.sampling
    drawn: dict[str, Any] = sampling.model_dump(exclude={"seed", "logit_bias"})
    if sampling.logit_bias:
        drawn["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if not sampling.greedy:
        drawn["seed"] = seed_at(ask.seed, ask.stream, len(ask.tokens))
    return drawn


def _structured(output: dict[str, Any]) -> dict[str, Any]:
    match output["type"]:
        case "json_schema":
            return {"json": styled(output["schema"], SPACING)}  # its llguidance may be older than our options
        case "regex":
            return {"regex": output["pattern"]}
    return {"grammar": output["lark"]}


def _made(http: ServerConnection, choice: _Choice, top: int) -> TokensEvent:
    told = choice.get("logprobs") or _Logprobs()
    tops = [_likeliest(place, top) for place in told.get("top_logprobs") or ()] if top else None
    return made(http.host, choice.get("token_ids") or [], told.get("token_logprobs"), tops, top)


def _place(http: ServerConnection, told: _Told) -> list[tuple[int, float]]:
    places = [(choice.get("logprobs") or _Logprobs()).get("top_logprobs") for choice in told.get("choices", ())]
    if not places or not places[0] or not places[0][0]:
        raise bad_response(http.host, "without log-probabilities")
    return _likely(places[0][0])


def _likely(place: _Place) -> list[tuple[int, float]]:
    return [(int(name.removeprefix(_NAMED)), logprob) for name, logprob in place.items()]


def _likeliest(place: _Place, count: int) -> Top:
    return sorted(_likely(place), key=lambda each: (-each[1], each[0]))[:count]


def _fed(http: ServerConnection, told: _Told) -> PrefillEvent:
    usage = told.get("usage")
    if not usage:
        raise bad_response(http.host, "without a count of its tokens")
    details = usage.get("prompt_tokens_details") or _Cached()
    cached = details.get("cached_tokens")
    return PrefillEvent(usage["prompt_tokens"], None if cached is None else min(cached, usage["prompt_tokens"]))
