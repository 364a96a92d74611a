"""Chat completions, asked for by OpenAI's own client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import anyio
import openai
import pytest
from agentkv_runtime.formats.spelling import MOST_CALLS
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

import agentkv as kv
from agentkv.serve.settings import Settings

from .conftest import Served, serving

pytestmark = pytest.mark.anyio

SYSTEM = {"role": "system", "content": "You are Nano, a desk agent."}
OSLO = [SYSTEM, {"role": "user", "content": "What is the weather in Oslo?"}]
HI = [{"role": "user", "content": "Say hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BOTH = [SYSTEM, {"role": "user", "content": "What is the weather in Oslo and in Rome?"}]


async def ask(site: Served, messages: Any = HI, **options: Any) -> ChatCompletion:
    return await site.openai.chat.completions.create(
        **{"model": "nano", "messages": messages, "temperature": 0, "max_tokens": 60} | options
    )


async def direct(messages: Any, **options: Any) -> kv.Generation[str]:
    """What the SDK itself makes of it."""
    async with kv.Context.open(kv.models.nano(), threads=1) as ctx:
        branch = await ctx.branch(messages, tools=options.pop("tools", None))
        return await branch.generate(**options)


async def test_a_message_is_the_one_that_the_sdk_makes() -> None:
    expected = await direct(OSLO, max_tokens=60)
    async with serving() as site:
        made = await ask(site, OSLO)
        assert made.choices[0].message.content == expected.text
        assert made.choices[0].finish_reason == "stop"
        assert made.usage is not None
        assert made.usage.prompt_tokens == expected.usage.prompt_tokens
        assert made.usage.completion_tokens == expected.usage.completion_tokens
        assert made.model == "nano"
        assert made.system_fingerprint is not None
        assert made.system_fingerprint.startswith("fp_")
        assert (await ask(site, OSLO, model="alias")).choices[0].message == made.choices[0].message


async def test_a_stream_says_the_same() -> None:
    async with serving() as site:
        whole = await ask(site, OSLO, logprobs=True, top_logprobs=2)
        chunks = [
            chunk
            async for chunk in await site.openai.chat.completions.create(
                model="nano",
                messages=OSLO,  # type: ignore[arg-type]
                temperature=0,
                max_tokens=60,
                stream=True,
                stream_options={"include_usage": True},
                logprobs=True,
                top_logprobs=2,
            )
        ]
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert said[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in said) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in said if choice.finish_reason] == ["stop"]
    likely = [token for choice in said if choice.logprobs for token in choice.logprobs.content or ()]
    assert whole.choices[0].logprobs is not None
    assert likely == whole.choices[0].logprobs.content
    assert "".join(token.token for token in likely) == whole.choices[0].message.content
    assert all(len(token.top_logprobs) == 2 for token in likely)
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_with_tools_prefills_only_what_is_new(stream: bool) -> None:
    async with serving() as site:
        client = site.openai
        messages: list[Any] = list(OSLO)
        how: dict[str, Any] = {"model": "nano", "messages": messages, "tools": [WEATHER], "temperature": 0}
        if stream:
            async with client.chat.completions.stream(**how) as events:
                async for _ in events:
                    pass
                made: Any = await events.get_final_completion()
        else:
            made = await client.chat.completions.create(**how)
        (choice,) = made.choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        messages.append({"role": "assistant", "tool_calls": [call.model_dump(exclude={"index", "parsed_arguments"})]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"temp": 7, "sky": "rainy"}'})
        before = site.ctx.stats
        answer = await client.chat.completions.create(**how)
        after = site.ctx.stats
        assert answer.choices[0].finish_reason == "stop"
        assert "7" in (answer.choices[0].message.content or "")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        assert cached >= made.usage.prompt_tokens if made.usage else cached > 50
        assert after.prefilled - before.prefilled <= answer.usage.prompt_tokens - cached + 1


async def test_parallel_calls_and_what_is_asked_of_them() -> None:
    async with serving() as site:
        both = (await ask(site, BOTH, tools=[WEATHER])).choices[0].message.tool_calls or []
        assert [json.loads(call.function.arguments)["city"] for call in both if call.type == "function"] == [
            "Oslo",
            "Rome",
        ]
        assert len({call.id for call in both}) == 2
        one = await ask(site, BOTH, tools=[WEATHER], parallel_tool_calls=False)
        assert len(one.choices[0].message.tool_calls or []) == 1
        none = await ask(site, OSLO, tools=[WEATHER], tool_choice="none")
        assert none.choices[0].message.tool_calls is None
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            forced = await ask(site, HI, tools=[WEATHER], tool_choice=choice)
            assert forced.choices[0].message.tool_calls
            assert forced.choices[0].finish_reason in ("tool_calls", "length")


@pytest.mark.parametrize(("options", "most"), [({}, MOST_CALLS), ({"parallel_tool_calls": False}, 1)])
@pytest.mark.parametrize("choice", ["required", "auto"])
async def test_a_message_that_goes_on_calling_comes_to_an_end(choice: str, options: dict[str, Any], most: int) -> None:
    async with serving() as site:
        ends = {str(end): -100 for end in site.ctx.tokenizer.eos_ids}
        made = await ask(
            site, OSLO, tools=[WEATHER], tool_choice=choice, logit_bias=ends, max_tokens=2000, temperature=0, **options
        )
        assert len(made.choices[0].message.tool_calls or []) == most
        assert made.choices[0].finish_reason == "tool_calls"


class Mood(BaseModel):
    mood: Literal["good", "bad"]
    sure: bool


async def test_content_is_held_to_a_schema() -> None:
    async with serving() as site:
        parsed = await site.openai.chat.completions.parse(
            model="nano",
            messages=HI,  # type: ignore[arg-type]
            response_format=Mood,
            temperature=0,
        )
        assert isinstance(parsed.choices[0].message.parsed, Mood)
        loose = await ask(site, response_format={"type": "json_object"}, max_tokens=200)
        if loose.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(loose.choices[0].message.content or ""), dict)


async def test_four_choices_share_one_prefill_and_a_seed_repeats_them() -> None:
    async with serving() as site:
        how: dict[str, Any] = {"n": 4, "temperature": 1.2, "seed": 7, "max_tokens": 12}
        made = await ask(site, HI, **how)
        assert made.usage is not None
        assert site.ctx.stats.prefilled == made.usage.prompt_tokens
        texts = [choice.message.content for choice in made.choices]
        assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
        assert len(set(texts)) > 1
        await ask(site, OSLO, seed=1, temperature=1)  # whatever was asked in between
        assert [choice.message.content for choice in (await ask(site, HI, **how)).choices] == texts
        streamed = ["", "", "", ""]
        stream = await site.openai.chat.completions.create(model="nano", messages=HI, stream=True, **how)  # type: ignore[arg-type]
        async for chunk in stream:
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        assert streamed == texts


async def test_stop_strings_limits_and_ids() -> None:
    async with serving() as site:
        whole = await ask(site, OSLO)
        text = whole.choices[0].message.content or ""
        stop = text[len(text) // 2 :][:3]
        stopped = await ask(site, OSLO, stop=[stop, "never said"])
        assert stopped.choices[0].message.content == text[: text.index(stop)]
        assert stopped.choices[0].finish_reason == "stop"
        cut = await ask(site, OSLO, max_tokens=None, max_completion_tokens=2)
        assert cut.choices[0].finish_reason == "length"
        ids = await ask(site, OSLO, extra_body={"return_token_ids": True})
        assert ids.model_extra is not None
        tokenizer = site.ctx.tokenizer
        assert ids.model_extra["prompt_token_ids"] == tokenizer.apply_chat(OSLO)
        (choice,) = ids.choices
        assert choice.model_extra is not None
        assert tokenizer.decode(choice.model_extra["token_ids"]) == text
        biased = await ask(site, OSLO, logit_bias={str(choice.model_extra["token_ids"][0]): -100})
        assert biased.choices[0].message.content != text


async def test_a_client_that_hangs_up_frees_its_branch_within_a_step() -> None:
    async with serving(Settings(names=("nano",), most_kept=0)) as site:
        stream = await site.openai.chat.completions.create(
            model="nano",
            messages=HI,  # type: ignore[arg-type]
            stream=True,
            temperature=1,
            logit_bias={str(i): -100 for i in site.ctx.tokenizer.eos_ids},
        )
        async for _ in stream:
            break
        await stream.close()
        await site.until_idle()
        assert not site.ctx.branches
        steps = site.ctx.stats.steps
        await (await site.ctx.branch("x")).close()
        assert site.ctx.stats.steps <= steps + 2
        assert site.ctx.stats.cells_used == 0


async def test_one_that_waits_for_the_whole_does_as_well() -> None:
    async with serving(Settings(names=("nano",), most_kept=0)) as site:
        endless = {str(i): -100 for i in site.ctx.tokenizer.eos_ids}
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ask(site, max_tokens=12000, temperature=1, logit_bias=endless))
            await site.until(lambda: site.ctx.stats.steps > 20)
            group.cancel_scope.cancel()
        await site.until_idle()
        assert not site.ctx.branches
        assert site.ctx.stats.steps < 12000


async def test_sixty_four_at_once_are_all_right_and_all_freed() -> None:
    async with serving(Settings(names=("nano",), most_kept=0, most_running=16), capacity=8192) as site:
        expected = (await ask(site, OSLO)).choices[0].message.content
        texts: list[str | None] = []

        async def one(index: int) -> None:
            made = await ask(site, OSLO, tools=[WEATHER] if index % 2 else openai.NOT_GIVEN)
            (choice,) = made.choices
            texts.append(expected if index % 2 and choice.message.tool_calls else choice.message.content)

        async with anyio.create_task_group() as group:
            for index in range(64):
                group.start_soon(one, index)
        assert texts == [expected] * 64
        await site.until_idle()
        assert not site.ctx.branches
        assert site.ctx.stats.mean_rows > 2
        assert site.server.admission.running == site.server.admission.waiting == 0


async def test_a_full_cache_lets_conversations_that_wait_go_first() -> None:
    async with serving(capacity=512) as site:
        for city in ("Oslo", "Rome", "Paris", "Bern", "Lima", "Kiev", "Riga", "Baku"):
            asked = [SYSTEM, {"role": "user", "content": f"What is the weather in {city}? " + "Please. " * 10}]
            made = await ask(site, asked, max_tokens=30)
            assert made.choices[0].finish_reason in ("stop", "length")
        assert site.ctx.stats.cells_used <= 512
        kept = len(site.server.cache)
        for words in (2000, 500):  # more than the cache has cells: nobody gives way for that
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(site, [{"role": "user", "content": "word " * words}])
            assert caught.value.code == "context_full"
            assert words < 2000 or len(site.server.cache) == kept


async def test_nobody_goes_on_from_what_its_client_was_not_told() -> None:
    async with serving() as site:
        said = (await ask(site, OSLO)).choices[0].message.content or ""
        cut = (await ask(site, OSLO, stop=[said[-8:-4]])).choices[0].message.content
        assert cut
        assert cut != said
        history = [*OSLO, {"role": "assistant", "content": cut}, *HI]
        told = await ask(site, history, extra_body={"return_token_ids": True})
        assert told.model_extra is not None
        assert told.model_extra["prompt_token_ids"] == site.ctx.tokenizer.apply_chat(history)
        half = await ask(site, OSLO, tools=[WEATHER], max_tokens=6)
        assert half.choices[0].finish_reason == "length"
        history = [*OSLO, {"role": "assistant", "content": half.choices[0].message.content or ""}, *HI]
        told = await ask(site, history, tools=[WEATHER], extra_body={"return_token_ids": True})
        assert told.model_extra is not None
        assert told.model_extra["prompt_token_ids"] == site.ctx.tokenizer.apply_chat(history, [WEATHER])


async def test_an_offload_folder_that_is_gone_shuts_nobody_out(tmp_path: Path) -> None:
    folder = tmp_path / "offload"
    folder.mkdir()
    async with serving(capacity=512, offload=kv.Offload(memory_bytes=0, folder=folder)) as site:
        folder.rmdir()
        folder.write_text("a file in its place")
        for number in range(8):
            asked: dict[str, Any] = {"input": f"Number {number}. " * 12, "temperature": 0, "max_output_tokens": 8}
            assert (await site.openai.responses.create(model="nano", **asked)).status in ("completed", "incomplete")
