"""What servers speak: answers of a real vLLM from a tape, and answers that are not what they should be, of vLLM and of
our own server: a typed error or a right answer, and branches that go on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from agentkv.remote.errors import RetryableError, event_error
from tests.waiting import PATIENCE

from .conftest import QUESTION, Broken
from .tape import VLLM_TAPE, Tape, played, session

pytestmark = pytest.mark.anyio

ODD: list[Any] = [None, True, -1, 0, 3, 2**31, 10**30, -0.5, "", "x", "token_id:5", [], [[]], [-1], ["a"], {}, {"a": 1}]
ODD_TEXTS = ["NaN", "-Infinity", "1e999", "[" * 500]  # as they stand in the JSON
HOW = {"retries": 0, "timeout": 20.0}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*path, name))


def with_other(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """The same value but for one place; `...` takes that away."""
    if not path:
        return None if other is ... else other
    changed = value.copy()
    if other is ... and len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = with_other(value[path[0]], path[1:], other)
    return changed


def changed(body: bytes, rng: random.Random) -> bytes:
    """One place of an answer, or of one of its events, is something else."""
    events = body.split(b"\n\n")
    whole = [i for i, event in enumerate(events) if event.startswith(b"data: {")]
    which = rng.choice(whole) if whole else 0
    lead = b"data: " if whole else b""
    try:
        told = json.loads(events[which].removeprefix(lead))
    except ValueError:
        return body[: rng.randrange(len(body))]  # numbers of a row
    path = rng.choice(list(places(told)))
    odd = rng.choice([*ODD, ..., *ODD_TEXTS])
    mark = "here is the odd text"
    text = json.dumps(with_other(told, path, mark if odd in ODD_TEXTS else odd))
    events[which] = lead + text.replace(f'"{mark}"', str(odd)).encode()
    return b"\n\n".join(events)


async def attacked(tape: Tape, rounds: int, rng: random.Random, connect: Callable[[], Any]) -> dict[str, int]:
    """Sessions in which one answer is not what it should be; each is followed by one in which all are."""
    outcomes: dict[str, int] = {}
    async with connect() as ctx:
        expected = await session(ctx, QUESTION)
    for _ in range(rounds):
        target = rng.choice(sorted(tape.answers))
        wrong = changed(tape.answers[target].body.encode("latin-1"), rng)
        tape.change = lambda request, body: wrong if request == target else body  # noqa: B023
        outcome = "right"
        with anyio.fail_after(PATIENCE):
            try:
                async with connect() as ctx:
                    branch = await ctx.branch(QUESTION)
                    with suppress(kv.AgentKVError):
                        await session(ctx, QUESTION)
                        outcome = "told as it was"
                    tape.change = lambda _, body: body
                    assert all(0 <= token < ctx.model_info.vocab_size for token in branch.tokens)
                    assert await session(ctx, QUESTION) == expected, wrong
            except (kv.RemoteError, kv.ModelError, kv.InvalidInput) as error:
                outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


@pytest.fixture(scope="module")
def vllm() -> Iterator[Tape]:
    thread = LoopThread(lambda: played(Tape.read(VLLM_TAPE)))
    yield thread.value
    thread.close()


@pytest.fixture(scope="module")
def own(running: Broken) -> Iterator[Tape]:
    thread = LoopThread(lambda: played(Tape(source=running.served.url)))
    yield thread.value
    thread.close()


@pytest.fixture(autouse=True)
def unchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"vllm", "own"} & set(request.fixturenames):
        request.getfixturevalue(name).change = lambda _, body: body


async def test_what_a_real_vllm_said_is_understood(vllm: Tape, local: kv.Context) -> None:
    async with kv.Context.connect(vllm.url, tokenizer=kv.models.nano(), **HOW) as ctx:  # type: ignore[arg-type]
        assert ctx.model_info.top_logits == 20
        said = await session(ctx, QUESTION)
        assert ctx.stats.generated == 22  # tokens on the tape
        assert (ctx.stats.prefilled, ctx.stats.reused) == (389, 192)
    here = await session(local, QUESTION)
    for name in ("prompt", "long"):
        assert said[name] == here[name]
    assert said["greedy"][3] == "eos"
    assert len(said["drawn"][0]) == 12
    assert len(said["typed"]) == 3
    assert said["typed"].isdecimal()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("rounds", [20, pytest.param(3000, marks=pytest.mark.soak)])
async def test_odd_answers_of_vllm(vllm: Tape, rounds: int) -> None:
    def connect() -> Any:
        return kv.Context.connect(vllm.url, tokenizer=kv.models.nano(), **HOW)  # type: ignore[arg-type]

    print(await attacked(vllm, rounds, random.Random(7), connect))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("rounds", [20, pytest.param(3000, marks=pytest.mark.soak)])
async def test_odd_answers_of_our_own_server(own: Tape, rounds: int) -> None:
    def connect() -> Any:
        return kv.Context.connect(own.url, backend="agentkv", **HOW)  # type: ignore[arg-type]

    print(await attacked(own, rounds, random.Random(8), connect))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (b'data: {"tokens": [5, 6], "logprobs": [0.0], "cached": 0}\n\n', "lack their log-probabilities"),
        (b'data: {"tokens": [999999], "logprobs": [0.0], "cached": 0}\n\n', "made token 999999"),
        (b'data: {"tokens": [-1], "logprobs": [0.0], "cached": 0}\n\n', r"tokens\.0"),
        (b'data: {"finish_reason": "bored"}\n\n', "bored"),
        (b'data: {"cached": -3}\n\n', "cached"),
        (b"data: 5\n\n", "it: Input should be an object"),
        (b"data: " + b"x" * (65 << 20), "does not end"),
    ],
)
async def test_each_odd_answer_is_named(own: Tape, odd: bytes, words: str) -> None:
    async with kv.Context.connect(own.url, backend="agentkv", **HOW) as ctx:  # type: ignore[arg-type]
        branch = await ctx.branch(QUESTION)
        before = branch.tokens
        own.change = lambda _, body: odd
        with pytest.raises(kv.RemoteError, match=words):
            await branch.generate(max_tokens=5)
        assert branch.tokens == before
        own.change = lambda _, body: body
        assert (await branch.generate(max_tokens=5)).tokens


async def test_an_answer_without_end_is_not_held_in_memory(own: Tape) -> None:
    async with kv.Context.connect(own.url, backend="agentkv", **HOW) as ctx:  # type: ignore[arg-type]
        branch = await ctx.branch(QUESTION)
        own.change = lambda _, body: b" " * (65 << 20)
        with pytest.raises(kv.RemoteError, match="more than 67,108,864 bytes"):
            await branch.select(["yes", "no"])


async def test_a_server_cannot_have_more_than_it_was_given(own: Tape) -> None:
    def boasting(request: str, body: bytes) -> bytes:
        return re.sub(rb'"cached": ?[0-9]+', b'"cached": %d' % 2**52, body)

    async with kv.Context.connect(own.url, backend="agentkv", **HOW) as ctx:  # type: ignore[arg-type]
        branch = await ctx.branch(QUESTION)
        own.change = boasting
        await branch.generate(max_tokens=3)
        await branch.select(["yes", "no"])
        assert 0 <= ctx.stats.reused < 500
        assert ctx.stats.prefilled == 0


async def test_a_row_that_nothing_was_told_of_is_no_row(vllm: Tape) -> None:
    async with kv.Context.connect(vllm.url, tokenizer="nano", **HOW) as ctx:  # type: ignore[arg-type]
        branch = await ctx.branch(QUESTION)
        vllm.change = lambda _, body: re.sub(rb'"top_logprobs":\[{[^}]*}\]', b'"top_logprobs":[{}]', body)
        with pytest.raises(kv.RemoteError, match="without log-probabilities"):
            await branch.logits()


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]
)
async def test_a_damaged_tokenizer_is_the_servers(own: Tape, name: str) -> None:
    def damaged(request: str, body: bytes) -> bytes:
        if "tokenizer" not in request:
            return body
        files = json.loads(body)["files"]
        return json.dumps({"files": files | {name: "{% if"}}).encode()

    own.change = damaged
    with pytest.raises(kv.ModelError) as refused:
        async with kv.Context.connect(own.url, backend="agentkv", **HOW):  # type: ignore[arg-type]
            pass
    assert name in str(refused.value) or "chat template" in str(refused.value)
    assert "/agentkv-" not in str(refused.value)
    assert str(refused.value).startswith("the server's tokenizer of tiny")


async def test_a_key_that_names_a_file_is_not_told(own: Tape) -> None:
    own.change = lambda request, body: b'{"files": {"sesame-open": 1}}' if "tokenizer" in request else body
    with pytest.raises(kv.RemoteError, match=r"files\.\*\*\*"):
        async with kv.Context.connect(own.url, backend="agentkv", api_key="sesame-open", **HOW):  # type: ignore[arg-type]
            pass


async def test_what_vllm_cannot_go_on_with_begins_again(vllm: Tape) -> None:
    async with kv.Context.connect(vllm.url, tokenizer="nano", retries=2) as ctx:
        expected = await session(ctx, QUESTION)
        cuts = 2

        def cut(request: str, body: bytes) -> bytes:
            nonlocal cuts
            if "structured_outputs" not in request or not cuts:
                return body
            cuts -= 1
            return b"\n\n".join(body.split(b"\n\n")[:2]) + b"\n\n"

        vllm.change = cut
        assert await session(ctx, QUESTION) == expected
        assert ctx.stats.retries == 2


async def test_a_body_may_be_compressed(vllm: Tape) -> None:
    async with kv.Context.connect(vllm.url, tokenizer=kv.models.nano(), **HOW) as ctx:  # type: ignore[arg-type]
        expected = await session(ctx, QUESTION)
        vllm.compress = True
        assert await session(ctx, QUESTION) == expected
        vllm.compress = False


@pytest.mark.parametrize(
    ("type_", "got_on", "again"),
    [("rate_limit_error", False, True), ("rate_limit_error", True, False), ("invalid_request_error", False, False)],
)
def test_no_room_for_a_prompt_that_was_begun_is_asked_for_again(type_: str, got_on: bool, again: bool) -> None:
    told = {"type": type_, "code": "context_full", "message": "no room"}
    error = event_error("host", told, got_on=got_on)
    assert isinstance(error, RetryableError) == again
    assert isinstance(error.error if isinstance(error, RetryableError) else error, kv.ContextFull)
