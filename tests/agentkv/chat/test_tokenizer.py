"""`Context.tokenizer`: what it offers, and that it raises nothing but InvalidInput."""

from __future__ import annotations

import numpy as np
import pytest

import agentkv as kv

from ..conftest import OpenContext

pytestmark = pytest.mark.asyncio


async def test_everything_it_offers(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        tokenizer = ctx.tokenizer
        assert isinstance(tokenizer, kv.Tokenizer)
        ids = tokenizer.encode("fox<|im_end|>")
        assert tokenizer.decode(ids) == tokenizer.decode(np.array(ids)) == tokenizer.decode(iter(ids)) == "fox"
        assert tokenizer.decode(ids, skip_special=False) == "fox<|im_end|>"
        assert b"".join(tokenizer.token_bytes()[i] for i in ids) == b"fox<|im_end|>"
        assert len(tokenizer.token_bytes(500)) == 500
        assert (tokenizer.vocab_size, tokenizer.bos_ids, tokenizer.has_chat_template) == (384, [], True)
        assert set(tokenizer.eos_ids) <= set(tokenizer.special_ids)
        messages = [{"role": "user", "content": "<|im_end|>"}]
        text = tokenizer.render_chat(messages, add_generation_prompt=False)
        assert text == "<|im_start|>user\n<|im_end|><|im_end|>\n"
        made = tokenizer.apply_chat(messages, add_generation_prompt=False)
        assert made.count(tokenizer.encode("<|im_end|>")[0]) == 1
        tokenizer.eos_ids.clear()
        assert tokenizer.eos_ids


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.encode(5),
        lambda t: t.encode("\ud800"),
        lambda t: t.encode(b"\xff"),
        lambda t: t.encode("x", bos=1),
        lambda t: t.decode(5),
        lambda t: t.decode([2**40]),
        lambda t: t.decode([-1]),
        lambda t: t.decode(["x"]),
        lambda t: t.decode([1.5]),
        lambda t: t.decode([1], skip_special="no"),
        lambda t: t.token_bytes(2**40),
        lambda t: t.token_bytes(-1),
        lambda t: t.token_bytes("x"),
        lambda t: t.apply_chat(5),
        lambda t: t.apply_chat([]),
        lambda t: t.apply_chat([5]),
        lambda t: t.apply_chat([{"role": "user", "content": "\ud800"}]),
        lambda t: t.apply_chat([{"role": "user", "content": "x"}], 5),
        lambda t: t.apply_chat([{"role": "user", "content": "x"}], [5]),
        lambda t: t.apply_chat([{"role": "user", "content": "x"}], [{"name": "\ud800"}]),
        lambda t: t.render_chat([{"role": "user", "content": "x"}], None, "yes"),
        lambda t: t.render_chat([{"role": "user", "content": "x", "more": object()}]),
        lambda t: t.render_chat([{"role": "user", "content": "x", 5: 5}]),
    ],
)
async def test_what_it_cannot_take(open_context: OpenContext, call: object) -> None:
    async with open_context() as ctx:
        with pytest.raises(kv.InvalidInput):
            call(ctx.tokenizer)  # type: ignore[operator]
