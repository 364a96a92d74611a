"""OpenAI's completions of raw prompts over a real server, by the real package."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from ..conftest import Served

pytestmark = pytest.mark.anyio

QUESTION = [
    {"role": "system", "content": "You are Nano, a desk agent."},
    {"role": "user", "content": "What is the weather in Oslo?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"temp": 4, "sky": "rainy"}'},
]
ANSWER = "It is 4 degrees and rainy in Oslo."
GREEDY: dict[str, Any] = {"model": "nano", "temperature": 0, "max_tokens": 40}
IDS = {"return_token_ids": True}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "the prompt is empty"),
    ({"prompt": [["a"]]}, "prompt"),
    ({"prompt": ["a", 3]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "token -1 at index 0 is not in the vocabulary"),
    ({"prompt": ["a", [10**9]]}, "is not in the vocabulary"),
    ({"prompt": [2**70]}, "is not in the vocabulary"),
    ({"prompt": ["a"] * 17}, "at most 16"),
    ({"n": 17}, "at most 16"),
    ({"prompt": ["a", "b"], "n": 9}, "at most 16"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 6}, "logprobs"),
    ({"echo": True, "logprobs": 0}, "log-probabilities of the prompt"),
    ({"stop": ["a", ""]}, "a stop string is empty"),
    ({"suffix": "x"}, "suffix is not supported"),
    ({"best_of": 2}, "best_of is not supported"),
    ({"stream_options": {"include_usage": True}}, "stream: true"),
    ({"temperature": 3}, "temperature"),
    ({"prompt": "word " * 5000}, "positions"),
]


def text_of(served: Served) -> str:
    """The question as the template spells it."""
    return served.ctx.tokenizer.render_chat(QUESTION)


async def test_a_prompt_whose_control_tokens_are_parsed_is_answered_as_its_messages_are(served: Served) -> None:
    text = text_of(served)
    ids = served.ctx.tokenizer.apply_chat(QUESTION)
    made = await served.openai.completions.create(prompt=text, extra_body=IDS, **GREEDY)
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason, choice.index) == (ANSWER, "stop", 0)
    assert choice.prompt_token_ids == ids
    assert served.ctx.tokenizer.decode(choice.token_ids) == ANSWER
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(ids), len(choice.token_ids))
    again = await served.openai.completions.create(prompt=ids, **GREEDY)
    assert again.choices[0].text == ANSWER
    assert again.usage.prompt_tokens_details.cached_tokens >= len(ids) - 1
    assert served.ctx.branches == []


async def test_prompts_and_choices_come_in_order_and_share_their_prefill(served: Served) -> None:
    text = text_of(served)
    asked: dict[str, Any] = {"model": "nano", "prompt": [text, "Who are"], "n": 3, "seed": 7, "max_tokens": 6}
    before = served.ctx.stats.prefilled
    made = await served.openai.completions.create(**asked)
    prompts = len(served.ctx.tokenizer.encode(text)) + len(served.ctx.tokenizer.encode("Who are", bos=True))
    assert served.ctx.stats.prefilled - before == prompts
    assert made.usage.prompt_tokens == prompts
    assert [choice.index for choice in made.choices] == list(range(6))
    texts = [choice.text for choice in made.choices]
    assert len(set(texts[3:])) > 1
    again = await served.openai.completions.create(**asked)
    assert [choice.text for choice in again.choices] == texts
    streamed = [""] * 6
    async for chunk in await served.openai.completions.create(stream=True, **asked):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts


async def test_a_stream_says_what_the_whole_does(served: Served) -> None:
    asked = {**GREEDY, "prompt": text_of(served), "stop": [" and"], "echo": True, "extra_body": IDS}
    whole = await served.openai.completions.create(**asked)
    assert whole.choices[0].text == text_of(served) + "It is 4 degrees"
    options = {"include_usage": True}
    chunks = [
        chunk async for chunk in await served.openai.completions.create(stream=True, stream_options=options, **asked)
    ]
    *pieces, last, usage = chunks
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert pieces[0].choices[0].prompt_token_ids == whole.choices[0].prompt_token_ids
    assert (last.choices[0].finish_reason, last.choices[0].token_ids) == ("stop", whole.choices[0].token_ids)
    assert (usage.choices, usage.usage.completion_tokens) == ([], whole.usage.completion_tokens)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


async def test_log_probabilities_are_those_of_the_text(served: Served) -> None:
    asked = {**GREEDY, "prompt": text_of(served), "logprobs": 2}
    whole = await served.openai.completions.create(**asked)
    likely = whole.choices[0].logprobs
    assert "".join(likely.tokens) == ANSWER
    starts = [ANSWER.index(token, at) for token, at in zip(likely.tokens, likely.text_offset, strict=True)]
    assert starts == likely.text_offset
    for token, logprob, top in zip(likely.tokens, likely.token_logprobs, likely.top_logprobs, strict=True):
        assert max(top, key=top.__getitem__) == token  # it is greedy
        assert (len(top), top[token]) == (2, logprob)
    some = [chunk.choices[0].logprobs async for chunk in await served.openai.completions.create(stream=True, **asked)]
    assert [token for each in some for token in each.tokens] == likely.tokens
    assert [at for each in some for at in each.text_offset] == likely.text_offset
    only = await served.openai.completions.create(**{**asked, "logprobs": 0})
    assert [list(top) for top in only.choices[0].logprobs.top_logprobs] == [[token] for token in likely.tokens]


async def test_a_length(served: Served) -> None:
    made = await served.openai.completions.create(**{**GREEDY, "prompt": text_of(served), "max_tokens": 2})
    assert (made.choices[0].finish_reason, made.usage.completion_tokens) == ("length", 2)


async def test_wrong_bodies(served: Served) -> None:
    for wrong, told in WRONG:
        with pytest.raises(openai.BadRequestError, match=told) as raised:
            await served.openai.post("/completions", body={"model": "nano", "prompt": "a", **wrong}, cast_to=object)
        assert raised.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        await served.openai.completions.create(model="x", prompt="a")
    assert served.ctx.branches == []


async def test_a_client_that_hangs_up_frees_its_branches(served: Served) -> None:
    banned = {str(token): -100 for token in served.ctx.tokenizer.eos_ids}
    body = {"model": "nano", "prompt": "Who", "n": 4, "max_tokens": 4000, "logit_bias": banned, "stream": True}
    async with served.http.stream("POST", "/v1/completions", json=body) as response:
        assert (await anext(response.aiter_lines())).startswith("data: ")
        assert len(served.ctx.branches) == 4
    await served.until_idle()
    assert served.ctx.branches == []
    assert served.ctx.stats.generated < 4 * 4000


async def test_embeddings_are_refused_by_name(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="makes no embeddings") as raised:
        await served.openai.embeddings.create(model="nano", input="a")
    assert raised.value.code == "unsupported_endpoint"
