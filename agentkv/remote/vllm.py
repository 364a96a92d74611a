"""What vLLM speaks: OpenAI's completions, with token ids in and out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import InvalidInput, ModelError
from .._sampling import Sampling
from ..output.json_schema import styled
from ._streams import seed_at
from .asks import Ask, Ended, Fed, Made, Row, Scores, Top
from .errors import cut_off, error_of, garbled
from .facts import Facts

if TYPE_CHECKING:
    from .connection import Connection

_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True, "add_special_tokens": False}
_NAMED = "token_id:"
_FEWEST_LIKELY = 20  # of the likeliest tokens that every server tells


class VLLM:
    """The wire of a vLLM server. `model` is its name there; None for the only one."""

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._likely: int | None = None
        self._vocab_size = 0

    def knows(self, vocab_size: int) -> None:
        """The model has so many tokens."""
        self._vocab_size = vocab_size

    async def facts(self, http: Connection) -> Facts:
        """Of its model. Raises ModelError for a server that does not tell token ids."""
        told = await http.get("models")
        try:
            served = {each["id"]: each for each in told["data"]}
            name = self._model or next(iter(served))
            if name not in served:
                raise ModelError(f"{http.host} has no model {name!r}; it has {', '.join(served)}")
            most, root = int(served[name]["max_model_len"]), str(served[name].get("root") or "")
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise garbled(http.host, "with a list of models that is none of vLLM's") from error
        self._model = name
        self._likely = await self._most_likely(http)
        folder = Path(root) if root and (Path(root) / "tokenizer.json").is_file() else None
        return Facts(name, most, folder=folder, likely=self._likely)

    async def generate(self, http: Connection, ask: Ask) -> AsyncGenerator[Made | Fed | Ended]:
        """The tokens as they come, and at last Ended."""
        body = self._body(ask.tokens, ask.max_tokens, ask.top_logprobs) | _drawn(ask)
        body |= {"stop": list(ask.stop), "include_stop_str_in_output": True, "stop_token_ids": list(ask.ends)}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.output is not None:
            body["structured_outputs"] = _structured(ask.output)
        ended: str | None = None
        async with http.events("completions", body) as events:
            async for event in events:
                if "error" in event:
                    raise error_of(event["error"], 500)
                if event.get("usage"):
                    yield _fed(event)
                for choice in event.get("choices", ()):
                    if choice.get("token_ids"):
                        yield _made(http, choice, ask.top_logprobs)
                    ended = choice.get("finish_reason") or ended
        if ended is None:
            raise cut_off(http.host)
        yield Ended(ended)

    async def prefill(self, http: Connection, tokens: list[int]) -> Fed:
        """One token is made, and dropped: the least that it takes."""
        return _fed(await http.post("completions", self._body(tokens, 1, 0) | {"temperature": 0}))

    async def logits(self, http: Connection, tokens: list[int]) -> tuple[Fed, Row]:
        """Log-probabilities: logits up to a constant, of as many tokens as the server tells."""
        told = await http.post("completions", self._body(tokens, 1, self._likely) | {"temperature": 0})
        row = np.full(self._vocab_size, -np.inf, np.float32)
        for token, logprob in _place(http, told):
            if token < len(row):
                row[token] = logprob
        return _fed(told), Row(row)

    async def select(self, http: Connection, tokens: list[int], choices: list[list[int]]) -> tuple[Fed, Scores]:
        """Asks once for each place where choices part or go on, all at a time."""
        nexts: dict[tuple[int, ...], set[int]] = {}
        for choice in choices:
            for i, token in enumerate(choice):
                nexts.setdefault(tuple(choice[:i]), set()).add(token)
        asked = (self._next(http, [*tokens, *path], sorted(following)) for path, following in nexts.items())
        told = dict(zip(nexts, await asyncio.gather(*asked), strict=True))
        scores = [sum(told[tuple(choice[:i])][1][token] for i, token in enumerate(choice)) for choice in choices]
        fed = [each for each, _ in told.values()]
        cached = None if any(each.cached is None for each in fed) else sum(each.cached or 0 for each in fed)
        return Fed(sum(each.tokens for each in fed), cached), Scores(scores)

    async def _next(self, http: Connection, tokens: list[int], following: list[int]) -> tuple[Fed, dict[int, float]]:
        body = self._body(tokens, 1, 0) | {"temperature": 0, "logprob_token_ids": following}
        told = await http.post("completions", body)
        likely = dict(_place(http, told))
        if not likely.keys() >= set(following):
            raise garbled(http.host, "without the log-probabilities that it was asked for")
        return _fed(told), likely

    async def _most_likely(self, http: Connection) -> int | None:
        """How many of the likeliest tokens it tells; None for all. Also finds out whether it tells ids at all."""
        for count in (-1, _FEWEST_LIKELY):
            try:
                told = await http.post("completions", self._body([0], 1, count) | {"temperature": 0})
            except InvalidInput as error:
                if count != -1 or not re.search("logprob", str(error)):
                    raise
            else:
                if not (told.get("choices") or [{}])[0].get("token_ids"):
                    raise ModelError(f"{http.host} tells no token ids; it takes vLLM 0.10.2 or newer")
                return None if count == -1 else count
        raise AssertionError

    def _body(self, tokens: list[int], max_tokens: int, likely: int | None) -> dict[str, Any]:
        logprobs = -1 if likely is None else likely
        return {"model": self._model, "prompt": tokens, "max_tokens": max_tokens, "logprobs": logprobs, **_IDS}


def _drawn(ask: Ask) -> dict[str, Any]:
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
            return {"json": styled(output["schema"])}
        case "regex":
            return {"regex": output["pattern"]}
    return {"grammar": output["lark"]}


def _made(http: Connection, choice: dict[str, Any], top: int) -> Made:
    tokens, told = choice["token_ids"], choice.get("logprobs") or {}
    logprobs = told.get("token_logprobs") or []
    if len(logprobs) != len(tokens):
        raise garbled(http.host, "with tokens that lack their log-probabilities")
    tops = [_likeliest(place, top) for place in told["top_logprobs"]] if top else []
    return Made(tokens, logprobs, tops)


def _place(http: Connection, told: dict[str, Any]) -> list[tuple[int, float]]:
    try:
        place = told["choices"][0]["logprobs"]["top_logprobs"][0]
        return [(int(name.removeprefix(_NAMED)), logprob) for name, logprob in place.items()]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise garbled(http.host, "without log-probabilities") from error


def _likeliest(place: dict[str, float], count: int) -> Top:
    likely = [(int(name.removeprefix(_NAMED)), logprob) for name, logprob in place.items()]
    return sorted(likely, key=lambda each: (-each[1], each[0]))[:count]


def _fed(told: dict[str, Any]) -> Fed:
    usage = told["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Fed(usage["prompt_tokens"], details.get("cached_tokens"))
