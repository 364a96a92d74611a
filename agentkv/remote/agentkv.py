"""What `agentkv serve` speaks: token ids in and out, draws by stream and position as in this process, whole rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ModelError
from .asks import Ask, Ended, Fed, Made, Row, Scores
from .errors import cut_off, error_of, garbled
from .facts import Facts

if TYPE_CHECKING:
    from .connection import Connection


class AgentKV:
    """The wire of our own server. `model` is its name there; None for the one that it has."""

    def __init__(self, model: str | None) -> None:
        self._model = model

    def knows(self, vocab_size: int) -> None:
        """The server's rows are whole."""

    async def facts(self, http: Connection) -> Facts:
        """Of its model, the tokenizer included. Raises ModelError for a model that it does not have."""
        told = await http.get("tokens")
        try:
            names = told.pop("names")
            if self._model is not None and self._model not in names:
                raise ModelError(f"{http.host} has no model {self._model!r}; it has {', '.join(names)}")
            return Facts(model=names[0], tokenizer_files=(await http.get("tokens/tokenizer"))["files"], **told)
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise garbled(http.host, "with facts that are none of agentkv's") from error

    async def generate(self, http: Connection, ask: Ask) -> AsyncGenerator[Made | Fed | Ended]:
        """The tokens as they come, and at last Ended."""
        body = {
            "tokens": ask.tokens,
            "max_tokens": ask.max_tokens,
            "stop": list(ask.stop),
            "sampling": ask.sampling.model_dump(exclude={"seed"}, exclude_none=True) | {"seed": ask.seed % 2**63},
            "draws": ask.stream,
            "top_logprobs": ask.top_logprobs,
            "output": ask.output,
        }
        ended = False
        async with http.events("tokens", body) as events:
            async for event in events:
                if "error" in event:
                    raise error_of(event["error"])
                if "cached" in event:
                    yield Fed(len(ask.tokens), event["cached"])
                if "tokens" in event:
                    tops = [[(int(token), logprob) for token, logprob in top] for top in event["tops"]]
                    yield Made(event["tokens"], event["logprobs"], tops)
                if "finish_reason" in event:
                    ended = True
                    yield Ended(event["finish_reason"])
        if not ended:
            raise cut_off(http.host)

    async def prefill(self, http: Connection, tokens: list[int]) -> Fed:
        """Computes them, and nothing else."""
        return Fed(len(tokens), (await http.post("tokens/prefill", {"tokens": tokens}))["cached"])

    async def logits(self, http: Connection, tokens: list[int]) -> tuple[Fed, Row]:
        """The whole row, as it is there."""
        response = await http.post_for_bytes("tokens/logits", {"tokens": tokens})
        return _fed(tokens, response.headers), Row(np.frombuffer(response.content, "<f4").astype(np.float32))

    async def select(self, http: Connection, tokens: list[int], choices: list[list[int]]) -> tuple[Fed, Scores]:
        """Scored together."""
        told = await http.post("tokens/select", {"tokens": tokens, "choices": choices})
        return Fed(len(tokens), told["cached"]), Scores(told["logprobs"])


def _fed(tokens: list[int], headers: Any) -> Fed:
    return Fed(len(tokens), int(headers["x-cached"]))
