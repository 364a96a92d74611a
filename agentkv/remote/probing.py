"""What servers say of themselves before anything is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from .._errors import ModelError
from .._log import log
from .errors import Busy
from .facts import Facts

if TYPE_CHECKING:
    from agentkv_runtime.tokenizer import Tokenizer

    from .asks import Wire
    from .connection import Connection
    from .replicas import Replicas

T = TypeVar("T")

LATE_S = 2.0  # that a server may take longer than others to say what it serves
PROBE = "The quick brown fox; naïve café, 東京: 12345.678 \n\t{}"


class _Tokenized(TypedDict):
    tokens: list[int]


_TOKENIZED = TypeAdapter(_Tokenized)


async def told_facts(wire: Wire, replicas: Replicas) -> Facts:
    """Of all servers that answer, one at least. Raises RemoteError, ModelError."""
    told = await _by_all([_of_one(wire, replica.connection) for replica in replicas.all])
    facts = [each for each in told if isinstance(each, Facts)]
    for each in told:
        if isinstance(each, ModelError) or (not facts and isinstance(each, Exception)):
            raise each
    for replica, each in zip(replicas.all, told, strict=True):
        if not isinstance(each, Facts):
            replica.failed(None)
            log.warning("a server does not answer; the others do its work", host=replica.connection.host)
    if len({(each.model, each.fingerprint) for each in facts}) > 1:
        raise ModelError("the servers serve different models: " + ", ".join(sorted({each.model for each in facts})))
    likely = [each.likely for each in facts if each.likely is not None]
    return replace(facts[0], max_positions=min(each.max_positions for each in facts), likely=min(likely, default=None))


async def _by_all(asked: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """What each came to. Once one has succeeded, the others have a moment left: those that hang are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    waiting, late = set(tasks), None
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=late, return_when=asyncio.FIRST_COMPLETED)
        if late is not None and not done:
            break
        if any(not task.cancelled() and task.exception() is None for task in done):
            late = LATE_S
    for task in waiting:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def _of_one(wire: Wire, http: Connection) -> Facts:
    try:
        return await wire.facts(http)
    except Busy as busy:
        raise busy.error from busy


async def check_tokenizer(replicas: Replicas, tokenizer: Tokenizer, model: str) -> None:
    """Raises ModelError where a server makes other tokens of a text. Not every server has the door."""
    mine = list(tokenizer.encode(PROBE))
    body = {"model": model, "prompt": PROBE, "add_special_tokens": False}
    well = [replica.connection for replica in replicas.all if replica.well]
    asked = [connection.post_beside("/tokenize", body, _TOKENIZED) for connection in well]
    for connection, told in zip(well, await _by_all(asked), strict=True):
        if not isinstance(told, BaseException) and told["tokens"] != mine:
            raise ModelError(
                f"{connection.host} makes other tokens of a text than the tokenizer that was found for {model}; pass "
                "the folder of the server's own as tokenizer"
            )
