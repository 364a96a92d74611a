"""Protocol of `agentkv serve`: token ids in and out, draws by stream and position as locally, whole rows of logits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import numpy as np
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from .._documents.published import PublishedBranch
from .._types.errors import ModelError, RemoteError
from .errors import bad_response, cut_off, event_error
from .protocol import (
    Attached,
    Count,
    EndEvent,
    GenerateRequest,
    LogitsEvent,
    Logprob,
    PrefillEvent,
    Publication,
    Published,
    Scores,
    TokenId,
    TokensEvent,
    ended,
    made,
)
from .server_info import ServerInfo

if TYPE_CHECKING:
    from .http import ServerConnection


class _Served(TypedDict):
    names: Annotated[list[str], Field(min_length=1)]
    max_positions: Annotated[int, Field(gt=0, lt=2**31)]
    capacity: Count
    vocab_size: Annotated[int, Field(gt=0, le=MOST_TOKENS)]
    fingerprint: str
    bit_exact: bool
    call_format: str | None
    quantization: str
    cache: str
    kv_dtype: str
    window: Annotated[int, Field(gt=0, lt=2**31)] | None
    sinks: Count
    quantize_after: Count | None
    n_layers: Count
    n_kv_heads: Count
    head_dim: Count


class _Tokenizer(TypedDict):
    files: Annotated[dict[str, str], Field(min_length=1)]


class _Prefilled(TypedDict):
    cached: Count


class _Selected(_Prefilled):
    logprobs: list[Logprob]


class _Kept(TypedDict):
    revision: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class _Snapshot(_Kept):
    branch: PublishedBranch
    fingerprint: str


class _Event(TypedDict, total=False):
    error: dict[str, Any]
    cached: Count
    tokens: list[TokenId]
    logprobs: list[Logprob]
    tops: list[list[tuple[TokenId, float]]]
    finish_reason: str


_SERVED, _TOKENIZER, _EVENT = TypeAdapter(_Served), TypeAdapter(_Tokenizer), TypeAdapter(_Event)
_KEPT, _SNAPSHOT = TypeAdapter(_Kept), TypeAdapter(_Snapshot)
_PREFILLED, _SELECTED = TypeAdapter(_Prefilled), TypeAdapter(_Selected)
MOST_TOKENS = 1 << 24  # of a vocabulary
MOST_STOPS = 16  # stop strings of a request; further ones are found locally
MOST_CHOICES = 256  # of one request
_ENDS = frozenset({"eos", "stop", "length", "context_full"})


class AgentKV:
    """Protocol of our own server. `model` is the name of the model there; None for the first."""

    can_resume = True

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._vocab_size = 0
        self._of_model: dict[str, str] = {}
        self._query = "" if model is None else f"?{urlencode({'model': model})}"  # one of several

    def knows(self, facts: ServerInfo, vocab_size: int) -> None:
        """Sets the fingerprint, and the cache where all servers agree, that requests name.

        A server that has others by then refuses them.
        """
        self._vocab_size = vocab_size
        self._of_model = {"fingerprint": facts.fingerprint} | ({"cache": facts.cache} if facts.cache else {})

    async def facts(self, http: ServerConnection) -> ServerInfo:
        """Facts about the server's model, with its tokenizer. Raises ModelError for a model that it does not have."""
        told = await http.get(f"tokens{self._query}", _SERVED)
        names = told["names"]
        if self._model is not None and self._model not in names:
            raise ModelError(f"{http.host} has no model {self._model!r}; it has {', '.join(names)}")
        files = (await http.get(f"tokens/tokenizer{self._query}", _TOKENIZER))["files"]
        known = {name: value for name, value in told.items() if name != "names"}
        return ServerInfo(model=self._model or names[0], tokenizer_files=files, **known)  # type: ignore[arg-type]

    async def generate(
        self, http: ServerConnection, ask: GenerateRequest
    ) -> AsyncGenerator[TokensEvent | PrefillEvent | EndEvent]:
        """Yields the tokens as they come, and an EndEvent last."""
        body = {
            "tokens": ask.tokens,
            "max_tokens": ask.max_tokens,
            "stop": list(ask.stop[:MOST_STOPS]),
            "sampling": ask.sampling.model_dump(exclude={"seed"}, exclude_none=True) | {"seed": ask.seed % 2**63},
            "draws": ask.stream,
            "top_logprobs": ask.top_logprobs,
            "output": ask.output,
            "made": ask.n_generated,
            "output_made": ask.n_output,
        }
        body |= self._of_model
        got_on = False
        async with http.events(f"tokens{self._query}", body, _EVENT) as events:
            async for event in events:
                if "error" in event:
                    raise event_error(http.host, event["error"], got_on=got_on)
                if "cached" in event:
                    yield _fed(ask.tokens, event["cached"])
                if event.get("tokens"):
                    got_on = True
                    yield made(http.host, event["tokens"], event.get("logprobs"), event.get("tops"), ask.top_logprobs)
                if "finish_reason" in event:
                    yield ended(http.host, event["finish_reason"], _ENDS)
                    return
        raise cut_off(http.host)

    async def prefill(self, http: ServerConnection, tokens: list[int]) -> PrefillEvent:
        """Has the server prefill these tokens."""
        body = {"tokens": tokens} | self._of_model
        return _fed(tokens, (await http.post(f"tokens/prefill{self._query}", body, _PREFILLED))["cached"])

    async def logits(self, http: ServerConnection, tokens: list[int]) -> tuple[PrefillEvent, LogitsEvent]:
        """Next-token logits after these tokens, the server's whole row."""
        body, headers = await http.post_for_bytes(f"tokens/logits{self._query}", {"tokens": tokens} | self._of_model)
        cached = headers.get("x-cached", "")
        if len(body) != 4 * self._vocab_size or not (cached.isdecimal() and len(cached) < 10):
            raise bad_response(http.host, f"with {len(body)} bytes instead of {self._vocab_size} logits")
        row = np.frombuffer(body, "<f4").astype(np.float32)
        if np.isnan(row).any():
            raise bad_response(http.host, "with logits that are no numbers")
        return _fed(tokens, int(cached)), LogitsEvent(row)

    async def select(
        self, http: ServerConnection, tokens: list[int], choices: list[list[int]]
    ) -> tuple[PrefillEvent, Scores]:
        """Log-probability of each choice, with up to 256 choices per request."""
        if len(choices) > MOST_CHOICES:
            first, scores = await self.select(http, tokens, choices[:MOST_CHOICES])
            more, others = await self.select(http, tokens, choices[MOST_CHOICES:])
            fed = PrefillEvent(first.tokens + more.tokens, (first.cached or 0) + (more.cached or 0))
            return fed, Scores(scores.logprobs + others.logprobs)
        body = {"tokens": tokens, "choices": choices} | self._of_model
        told = await http.post(f"tokens/select{self._query}", body, _SELECTED)
        if len(told["logprobs"]) != len(choices):
            raise bad_response(http.host, f"with {len(told['logprobs'])} scores of {len(choices)} choices")
        return _fed(tokens, told["cached"]), Scores(told["logprobs"])

    async def publish(self, http: ServerConnection, name: str, publication: Publication) -> Published:
        """Has the server store a branch. Repeats are harmless: the revision is the idempotency key."""
        body = {
            "branch": publication.branch.model_dump(mode="json"),
            "revision": publication.revision,
            "replaces": publication.replaces,
        }
        told = await http.put(self._path(name), body | self._of_model, publication.revision, _KEPT)
        return Published(told["revision"])

    async def attach(self, http: ServerConnection, name: str) -> Attached:
        """Gets the branch under a name. Raises RemoteError where the server's model has changed."""
        told = await http.get(self._path(name), _SNAPSHOT)
        if told["fingerprint"] != self._of_model["fingerprint"]:
            raise RemoteError(f"{http.host} has another model than the one that was connected to; connect again")
        return Attached(told["branch"], told["revision"])

    def _path(self, name: str) -> str:
        return f"branches/{name}/snapshot{self._query}"


def _fed(tokens: list[int], cached: int) -> PrefillEvent:
    return PrefillEvent(len(tokens), min(cached, len(tokens)))
