"""Call formats of a Context: found, named, and of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from agentkv_runtime.formats import FAMILIES

import agentkv as kv
from examples.nano.tools import SYSTEM, TOOLS


@pytest.mark.anyio
async def test_a_context_takes_a_format() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=64) as ctx:
        assert ctx._core.chat.format.name == "nano"
    async with kv.Context.open(kv.models.nano(), capacity=64, call_format="llama-json") as ctx:
        assert ctx._core.chat.format.name == "llama-json"
    template = FAMILIES["hermes"].template()
    async with kv.Context.open(kv.models.nano(), capacity=64, call_format=template) as ctx:
        assert ctx._core.chat.format.name == "response_template"


READS = {"open": "<a>", "close": "</a>", "content": "json"}
WRITES = kv.formats.Calls(kv.formats.JsonCall(), "<a>", "</a>")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("hermess", "must be one of"),
        (3, "must be one of"),
        ({"fields": {}}, "call_format"),
        (kv.formats.Family("x", READS), "has NoCalls, which writes no calls"),
        (kv.formats.Family("x", READS, kv.formats.Calls("x")), "has str, which writes no calls"),  # type: ignore[arg-type]
        (kv.formats.Family("x", READS, "<a>"), "has str, which writes no calls"),  # type: ignore[arg-type]
        (kv.formats.Family("x", {"open": "<a>"}, WRITES), "have no end; give close or close_pattern"),
        (kv.formats.Family("x", READS, WRITES, thinking=("", "")), "at least 1 character each"),
    ],
)
async def test_what_is_no_format_is_refused(wrong: Any, said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=said):
        async with kv.Context.open(kv.models.nano(), call_format=wrong):
            pass


@pytest.mark.anyio
async def test_a_folder_whose_response_template_is_malformed_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    folder.mkdir()
    for file in kv.models.nano().iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "response_template": {"fields": {}}}))
    async with kv.Context.open(folder, capacity=64) as ctx:
        with pytest.raises(kv.ModelError, match="fields of a response template"):
            _ = ctx._core.chat.format
    async with kv.Context.open(folder, capacity=64, call_format="nano") as ctx:
        assert ctx._core.chat.format.name == "nano"


QUESTIONS = ["Weather in Paris and in Rome?", "Convert 5 km to miles.", "Who are you?"]
DESK = [tool.definition() for tool in list(TOOLS.values())[:6]]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in DESK}


def spelled(ctx: kv.Context, gen: kv.Generation) -> str:
    return ctx.tokenizer.decode(gen.tokens, skip_special=False)


@pytest.mark.anyio
@pytest.mark.parametrize("strategy", [None, kv.spec.PromptLookup()], ids=["plain", "drafts"])
async def test_the_grammar_of_calls_lets_nano_say_what_it_says(strategy: kv.spec.PromptLookup | None) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=2048, speculative=strategy) as ctx:
        form = ctx._core.chat.format
        held = kv.Grammar(form.grammar(DESK))
        trunk = await ctx.branch([{"role": "system", "content": SYSTEM}], tools=DESK)
        for question in QUESTIONS:
            await trunk.extend([{"role": "user", "content": question}])
            free, constrained = await trunk.fork(2)
            said = await free.generate(max_tokens=48)
            before = ctx.stats.forwards
            again = await constrained.generate(max_tokens=48, output=held)
            assert (again.tokens, again.finish_reason) == (said.tokens, said.finish_reason)
            calls = form.parse(spelled(ctx, again)).calls
            assert all(call.error is None for call in calls)
            if calls and strategy is None:
                assert ctx.stats.forwards - before < 0.6 * len(again.tokens)  # the rest was forced
            await trunk.adopt(constrained)
            free.close()


@pytest.mark.anyio
async def test_calls_that_are_required_are_of_tools_that_there_are() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        form = ctx._core.chat.format
        held = kv.Grammar(form.grammar(DESK, choice="required"))
        trunk = await ctx.branch([{"role": "user", "content": "Thank you!"}], tools=DESK)
        branches = await trunk.fork(12)
        outs = await kv.gather(
            *(
                branch.generate(max_tokens=80, output=held, sampling=kv.Sampling(temperature=1.5, seed=seed))
                for seed, branch in enumerate(branches)
            )
        )
        whole = 0
        for gen in outs:
            message = form.parse(spelled(ctx, gen))
            assert gen.finish_reason == "length" or (
                message.calls and all(call.error is None for call in message.calls)
            )
            for call in message.calls:
                if call.error is None:
                    jsonschema.validate(call.arguments, SCHEMAS[call.name])
                    whole += 1
        assert whole >= 6
