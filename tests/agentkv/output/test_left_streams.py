"""A stream of an output that is left: what was read is an output cut short, which goes on where it stopped."""

from __future__ import annotations

from typing import Any

import pytest

import agentkv as kv

from .test_constraints import DATE, LIST, PERSON, asked

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("source", [PERSON, LIST, DATE], ids=lambda source: type(source).__name__)
@pytest.mark.parametrize(
    "speculative",
    [None, kv.spec.PromptLookup(adaptive=False), kv.spec.Suffix(adaptive=False)],
    ids=["plain", "lookup", "suffix"],
)
async def test_an_output_goes_on_after_any_token(source: Any, speculative: Any) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1, speculative=speculative) as ctx:
        trunk = await asked(ctx)
        whole = await (await trunk.fork()).generate(output=source, max_tokens=40)
        for count in range(0, len(whole.tokens), 3):
            async with await trunk.fork() as kid:
                async with kid.stream(output=source, max_tokens=40) as stream:
                    read = [(await anext(stream)).id for _ in range(count)]
                    if count % 2:
                        await stream._job.settled.wait()  # complete, or as long as it may be: all the same
                left = stream.generation
                assert left.tokens == read == whole.tokens[:count]
                assert left.finish_reason == "cancelled"
                rest = await kid.generate(output=source, max_tokens=40 - count)
                assert read + rest.tokens == whole.tokens
                assert rest.finish_reason == whole.finish_reason
                assert left.text + rest.text == whole.text
