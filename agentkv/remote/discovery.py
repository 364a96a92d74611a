"""Discovery of the servers' models, and checks that they agree, before any other request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from .._types.errors import ModelError
from .._types.log import log
from .errors import RetryableError
from .server_info import ServerInfo

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

    from .protocol import ServerProtocol
    from .replicas import Replicas

T = TypeVar("T")

LATE_S = 2.0  # seconds that a server may take longer than the first to report its model
PROBE = "The quick brown fox; naïve café, 東京: 12345.678 \n\t{}"


class _Tokenized(TypedDict):
    tokens: list[int]


_TOKENIZED = TypeAdapter(_Tokenized)


async def probe_servers(wire: ServerProtocol, replicas: Replicas) -> ServerInfo:
    """Common facts of all servers that answer. Raises RemoteError where none does, ModelError where models differ."""
    told = await _by_all([wire.facts(replica.connection) for replica in replicas.all])
    facts = [each for each in told if isinstance(each, ServerInfo)]
    for each in told:
        if isinstance(each, Exception) and not isinstance(each, RetryableError):
            raise each
    for replica, each in zip(replicas.all, told, strict=True):
        if isinstance(each, ServerInfo):
            continue
        if isinstance(each, RetryableError) and not facts:
            raise each.error from each
        why = str(each) if isinstance(each, RetryableError) else "it takes long to say what it serves"
        replica.failed(why, None)
        log.warning("a server does not answer; the others do its work", host=replica.connection.host, error=why)
    return _common(facts)


def _common(facts: list[ServerInfo]) -> ServerInfo:
    """Facts that hold for all servers, such as the smallest capacity. Raises ModelError where their models differ."""
    if len({(each.model, each.fingerprint) for each in facts}) > 1:
        named = sorted({f"{each.model} ({each.fingerprint[-12:] or 'unnamed weights'})" for each in facts})
        raise ModelError("the servers serve different models: " + ", ".join(named))
    caches = {each.cache for each in facts}
    if len(caches) > 1:
        log.warning("the caches of the servers differ: what one says, another may not", caches=sorted(caches))
    likely = [each.likely for each in facts if each.likely is not None]
    return replace(
        facts[0],
        max_positions=min(each.max_positions for each in facts),
        capacity=min(each.capacity for each in facts),
        likely=min(likely, default=None),
        cache=facts[0].cache if len(caches) == 1 else "",
        bit_exact=len(caches) == 1 and all(each.bit_exact for each in facts),
    )


async def _by_all(asked: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Results or errors of all requests, in order. Those that end later than 2 s after a success are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    waiting, late = set(tasks), None
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=late, return_when=asyncio.FIRST_COMPLETED)
            if late is not None and not done:
                break
            if any(not task.cancelled() and task.exception() is None for task in done):
                late = LATE_S
    finally:
        for task in waiting:
            task.cancel()
        told = await asyncio.gather(*tasks, return_exceptions=True)
    return told


async def check_tokenizer(replicas: Replicas, tokenizer: Tokenizer, model: str) -> None:
    """Raises ModelError where a server tokenizes a text differently. Servers without the endpoint are not checked."""
    mine = list(tokenizer.encode(PROBE))
    body = {"model": model, "prompt": PROBE, "add_special_tokens": False}
    well = [replica.connection for replica in replicas.all if replica.is_healthy]
    asked = [connection.post_beside("/tokenize", body, _TOKENIZED) for connection in well]
    for connection, told in zip(well, await _by_all(asked), strict=True):
        if not isinstance(told, BaseException) and told["tokens"] != mine:
            raise ModelError(
                f"{connection.host} makes other tokens of a text than the tokenizer that was found for {model}; pass "
                "the folder of the server's own as tokenizer"
            )
