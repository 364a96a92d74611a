"""Texts that are cut within a character: it is whole, or not there, whoever reads the text and however.

A row of SAID is what a model says, as bytes; nano's tokens for characters beyond ASCII are single bytes. Each is cut
behind every token. Where bytes are really no UTF-8, something else stands behind the beginning of a character, and the
text has U+FFFD there; a beginning with nothing behind it is no text yet, and whoever goes on from it writes the whole.
No row has white space: what is around a message is none of it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import agentkv as kv
from agentkv.testing._script import ReplyRule, Script
from tests.agentkv.serve.conftest import Served, serving_of

SAID: dict[str, bytes] = {
    "two bytes": "caf\u00e9\u00e9".encode(),
    "three bytes": "\u20ac1\u4f60\u597d".encode(),
    "four bytes": "\U0001f600\U0001f601".encode(),
    "a family of emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467!".encode(),
    "a flag, and an accent": "\U0001f1f3\U0001f1f4e\u0301".encode(),
    "one that is said itself": "\ufffd!\ufffd".encode(),
    "no beginning": b"a\x80\xbfb",
    "no end": b"a\xe2\x82b\xf0\x9f\x98",
    "two beginnings": b"\xe2\xe2\x82\xac",
    "a surrogate": b"\xed\xa0\x80.",
    "too long a spelling": b"\xc0\xaf\xf5",
}
OVER_HTTP = ["two bytes", "a family of emoji", "no end"]
PROMPT = "Say it:"
QUESTION: Any = [{"role": "user", "content": PROMPT}]


def text_of(spelled: bytes, *, ended: bool = False) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(spelled, ended)


class Bytes(Script):
    """Every generation says the same bytes, or goes on with them."""

    said: list[int]

    def for_generation(self, engine: Any, branch: int, description: Any) -> Any:
        log, end = engine.tokens(branch).tolist(), self.tokenizer.eos_ids[:1]
        begun = max(n for n in range(len(self.said) + 1) if n == 0 or log[-n:] == self.said[:n])
        rule = ReplyRule([*self.said[begun:], *end], self.tokenizer, self.vocab_size, None, "")  # type: ignore[arg-type]
        return self.as_native("bytes", rule)


@asynccontextmanager
async def saying(said: bytes) -> AsyncIterator[tuple[kv.Context, Bytes]]:
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx:
        script = Bytes(ctx._core, lambda _: "", lambda *_: "")
        ctx._core.compiler = script
        say(script, said)
        yield ctx, script


def say(script: Bytes, said: bytes) -> None:
    spelled = {token: i for i, token in enumerate(script.tokenizer.token_bytes()) if len(token) == 1}
    script.said = [spelled[bytes([byte])] for byte in said]


@pytest.mark.anyio
async def test_every_reader_of_every_cut() -> None:
    async with saying(b"") as (ctx, script):
        trunk = await ctx.branch(QUESTION)
        for said in SAID.values():
            say(script, said)
            for cut in range(1, len(said) + 1):
                expected, whole = text_of(said[:cut]), text_of(said, ended=True)
                async with await trunk.fork() as branch:
                    first = await branch.generate(max_tokens=cut)
                    assert (first.text, first.finish_reason) == (expected, "length")
                    assert branch.text == trunk.text + expected
                    assert branch.messages[-1].content == expected
                    rest = await branch.generate()
                    assert (first.text + rest.text, rest.finish_reason) == (whole, "eos")
                    assert rest.output == rest.text
                async with await trunk.fork() as branch:
                    texts = []
                    async with branch.stream() as tokens:
                        while len(texts) < cut:
                            texts.append((await anext(tokens)).text)
                    assert "".join(texts) == tokens.generation.text == expected
                    async with branch.stream() as tokens:
                        texts += [token.text async for token in tokens]
                    assert "".join(texts) == whole
                async with await trunk.fork() as branch, branch.stream(max_tokens=cut) as tokens:
                    assert "".join([token.text async for token in tokens]) == expected
                    assert tokens.generation.text == expected


@pytest.mark.anyio
async def test_generations_that_part_within_a_character() -> None:
    async with saying(b"") as (ctx, script):
        trunk = await ctx.branch(PROMPT)
        say(script, "\u00e9".encode())
        await trunk.generate(max_tokens=1)
        async with await trunk.fork() as one, await trunk.fork() as other, await trunk.fork() as third:
            assert (await one.generate(max_tokens=1)).text == "\u00e9"
            say(script, "\u00e8".encode())
            assert (await other.generate(max_tokens=1)).text == "\u00e8"
            await third.extend("x")  # nothing ends it any more
            assert third.text == PROMPT + "\ufffdx"
        assert trunk.text == PROMPT


@pytest.mark.anyio
async def test_text_behind_a_prompt_of_tokens_that_begins_a_character() -> None:
    async with saying("\u20ac!".encode()) as (ctx, script):
        branch = await ctx.branch([*ctx.tokenizer.encode("a"), *script.said[:1]])
        assert branch.text == "a"
        assert (await branch.generate(max_tokens=3)).text == "\u20ac!"


def test_streams_that_do_not_wait() -> None:
    said = "\u20ac\U0001f600".encode()
    with kv.Context.open(kv.models.nano(), capacity=512, threads=1).sync() as ctx:
        script = Bytes(ctx.awaited._core, lambda _: "", lambda *_: "")
        ctx.awaited._core.compiler = script
        say(script, said)
        for cut in range(1, len(said) + 1):
            branch = ctx.branch(PROMPT)
            with branch.stream() as tokens:
                text = "".join(next(iter(tokens)).text for _ in range(cut))
            assert text == tokens.generation.text == text_of(said[:cut])
            assert branch.text == PROMPT + text
            branch.close()


@pytest.mark.anyio
async def test_texts_of_an_agent() -> None:
    async with saying(b"") as (ctx, script):
        agent = kv.Agent(instructions="Answer.")
        for said in SAID.values():
            say(script, said)
            branch = await agent.trunk(ctx)
            async with agent.stream(branch, PROMPT) as events:
                texts = [event.text async for event in events if isinstance(event, kv.events.TextDelta)]
            assert "".join(texts) == events.run.text == text_of(said, ended=True)
            assert branch.messages[-1].content == events.run.text


async def of_chat(served: Served, most: int) -> tuple[str, str, str]:
    asked: dict[str, Any] = {"model": "nano", "messages": QUESTION, "max_tokens": most}
    whole = await served.openai.chat.completions.create(**asked)
    chunks = await served.openai.chat.completions.create(**asked, stream=True, logprobs=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
    with_logprobs = await served.openai.chat.completions.create(**asked, logprobs=True)
    assert with_logprobs.choices[0].message.content == whole.choices[0].message.content
    return whole.choices[0].message.content or "", text, whole.choices[0].finish_reason


async def of_completions(served: Served, most: int) -> tuple[str, str, str]:
    asked: dict[str, Any] = {"model": "nano", "prompt": PROMPT, "max_tokens": most}
    whole = await served.openai.completions.create(**asked)
    chunks = await served.openai.completions.create(**asked, stream=True)
    text = "".join([chunk.choices[0].text async for chunk in chunks if chunk.choices])
    return whole.choices[0].text, text, whole.choices[0].finish_reason


async def of_responses(served: Served, most: int) -> tuple[str, str, str]:
    asked: dict[str, Any] = {"model": "nano", "input": PROMPT, "max_output_tokens": most}
    whole = await served.openai.responses.create(**asked)
    events = await served.openai.responses.create(**asked, stream=True)
    text = "".join([event.delta async for event in events if event.type == "response.output_text.delta"])
    reason = "length" if whole.incomplete_details else "stop"
    return whole.output_text, text, reason


async def of_messages(served: Served, most: int) -> tuple[str, str, str]:
    asked: dict[str, Any] = {"model": "nano", "messages": QUESTION, "max_tokens": most}
    whole = await served.anthropic.messages.create(**asked)
    async with served.anthropic.messages.stream(**asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
    spelled = "".join(block.text for block in whole.content if block.type == "text")
    return spelled, text, {"max_tokens": "length"}.get(str(whole.stop_reason), "stop")


async def of_branches(served: Served, most: int) -> tuple[str, str, str]:
    made = (await served.http.post("/v1/branches", json={"text": PROMPT})).json()
    forks = (await served.http.post(f"/v1/branches/{made['id']}/fork", json={"n": 1})).json()["forks"]
    whole = await served.http.post(f"/v1/branches/{made['id']}/generate", json={"max_tokens": most})
    generation = whole.json()["generation"]
    branch = (await served.http.get(f"/v1/branches/{made['id']}?whole=true")).json()
    assert branch["text"].removesuffix("<|im_end|>") == PROMPT + generation["text"]
    asked = {"max_tokens": most, "stream": True}
    lines = (await served.http.post(f"/v1/branches/{forks[0]['id']}/generate", json=asked)).text.splitlines()
    for each in (made, *forks):
        await served.http.delete(f"/v1/branches/{each['id']}")
    events = [json_of(line) for line in lines if line.startswith("data: {")]
    text = "".join(event["text"] for event in events if "text" in event and "index" in event)
    reason = "length" if generation["finish_reason"] == "length" else "stop"
    return generation["text"], text, reason


def json_of(line: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return event


Ask = Callable[[Served, int], Coroutine[Any, Any, tuple[str, str, str]]]


@pytest.mark.asyncio
@pytest.mark.parametrize("ask", [of_chat, of_completions, of_responses, of_messages, of_branches])
async def test_every_cut_over_http(ask: Ask) -> None:
    async with saying(b"") as (ctx, script), serving_of(ctx) as served:
        for name in OVER_HTTP:
            said = SAID[name]
            say(script, said)
            for most in range(1, len(said) + 2):
                ended = most > len(said)
                expected = text_of(said[:most], ended=ended)
                assert await ask(served, most) == (expected, expected, "stop" if ended else "length"), (name, most)


@pytest.mark.asyncio
async def test_every_cut_of_a_server_that_is_connected_to() -> None:
    async with (
        saying(b"") as (there, script),
        serving_of(there) as served,
        kv.Context.connect(served.url, backend="agentkv") as ctx,
    ):
        for said in map(SAID.__getitem__, OVER_HTTP):
            say(script, said)
            for cut in range(1, len(said) + 1):
                branch = await ctx.branch(PROMPT)
                first = await branch.generate(max_tokens=cut)
                assert first.text == text_of(said[:cut])
                async with branch.stream() as tokens:
                    rest = "".join([token.text async for token in tokens])
                assert first.text + rest == text_of(said, ended=True)
                await branch.close()


@pytest.mark.asyncio
async def test_places_of_a_texts_tokens() -> None:
    """Of completions: where in the text each token begins."""
    said = "\u20ac1\u20ac2".encode()
    async with saying(said) as (ctx, script), serving_of(ctx) as served:
        prompt = [*ctx.tokenizer.encode("a"), *script.said[:1]]
        asked: dict[str, Any] = {"model": "nano", "prompt": prompt, "max_tokens": 7, "logprobs": 0}
        choice = (await served.openai.completions.create(**asked)).choices[0]
        assert choice.text == "\u20ac1\u20ac2"
        assert choice.logprobs is not None
        assert choice.logprobs.text_offset == [0, 0, 1, 2, 2, 2, 3]


SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"], "additionalProperties": False}


@pytest.mark.asyncio
async def test_a_reply_that_is_cut_within_a_schema_says_so() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    async with (
        kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx,
        serving_of(ctx) as served,
    ):
        chat: dict[str, Any] = {
            "model": "nano",
            "messages": QUESTION,
            "max_tokens": 4,
            "temperature": 0,
            "response_format": form,
        }
        whole = await served.openai.chat.completions.create(**chat)
        assert whole.choices[0].finish_reason == "length"
        chunks = [chunk async for chunk in await served.openai.chat.completions.create(**chat, stream=True)]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
        text = {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}}
        asked: dict[str, Any] = {"model": "nano", "input": PROMPT, "max_output_tokens": 4, "text": text}
        response = await served.openai.responses.create(**asked)
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
        events = [event async for event in await served.openai.responses.create(**asked, stream=True)]
        assert events[-1].type == "response.incomplete"
        messages: dict[str, Any] = {"model": "nano", "messages": QUESTION, "max_tokens": 4}
        config = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
        message = await served.anthropic.messages.create(**messages, extra_body=config)
        assert message.stop_reason == "max_tokens"
        async with served.anthropic.messages.stream(**messages, extra_body=config) as stream:
            assert (await stream.get_final_message()).stop_reason == "max_tokens"
        made = (await served.http.post("/v1/branches", json={"text": PROMPT})).json()
        output = {"type": "json_schema", "schema": SCHEMA}
        reply = await served.http.post(f"/v1/branches/{made['id']}/generate", json={"max_tokens": 4, "output": output})
        assert reply.json()["generation"]["finish_reason"] == "length"
