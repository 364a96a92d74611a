"""Histories as other makers write them, in every protocol, whole and streamed.

To add a case, write a row: `Last` for who spoke last, `Results` for where results of calls stand, `Arguments` for how
arguments are written. Messages are in OpenAI's form; `protocols` gives them the shape of the others.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import agentkv as kv
from agentkv._chat import messages as _messages
from tests.agentkv.serve.conftest import Served, serving_of

from .protocols import WEATHER, ask, calling, each_way

pytestmark = pytest.mark.anyio

SYSTEM = {"role": "system", "content": "The password is tulip."}
BRIEF = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather in Oslo and in Tolvik?"}
OPENED = "<|im_start|>assistant\n"
SAID = "So it is."


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def scripted(said: str = SAID) -> AsyncIterator[tuple[Served, list[str]]]:
    """A server whose model always says the same, and the prompts that it read."""
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return said

    async with kv.testing.replies(reply, capacity=4096, threads=1) as ctx, serving_of(ctx) as served:
        yield served, prompts


def assistant(text: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def result(call: str | None, content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **({} if call is None else {"tool_call_id": call}), **more}


def weather(name: str | None, city: str) -> dict[str, Any]:
    return calling(name, "weather", json.dumps({"city": city}))


class Last(NamedTuple):
    """A conversation, and how the prompt ends in which the model speaks."""

    messages: list[dict[str, Any]]
    ends: str


LAST: dict[str, Last] = {
    "system alone": Last([SYSTEM], f"tulip.<|im_end|>\n{OPENED}"),
    "developer alone": Last([{**SYSTEM, "role": "developer"}], f"tulip.<|im_end|>\n{OPENED}"),
    "system twice": Last([SYSTEM, BRIEF], f"Be brief.<|im_end|>\n{OPENED}"),
    "user, then system": Last([SYSTEM, USER, BRIEF], f"Be brief.<|im_end|>\n{OPENED}"),
    "answer, then system": Last([USER, assistant("It rains."), BRIEF], f"Be brief.<|im_end|>\n{OPENED}"),
    "result, then system": Last(
        [USER, assistant(None, weather("a", "Oslo")), result("a", "rain"), BRIEF], f"Be brief.<|im_end|>\n{OPENED}"
    ),
    "assistant": Last([SYSTEM, USER, assistant("It rains")], f"{OPENED}It rains"),
    "assistant, white space": Last([USER, assistant("It rains \n")], f"{OPENED}It rains"),
    "assistant, a marker": Last([USER, assistant("Write <tool_call> and")], f"{OPENED}Write <tool_call> and"),
    "assistant, longer than 64 tokens": Last([USER, assistant("word " * 80 + "end")], "word word end"),
    "assistant, empty": Last([USER, assistant("")], f"Tolvik?<|im_end|>\n{OPENED}"),
    "assistant twice": Last([USER, assistant("It rains."), assistant("And")], f"{OPENED}And"),
    "assistant, after results": Last(
        [USER, assistant(None, weather("a", "Oslo")), result("a", "rain"), assistant("In Oslo")], f"{OPENED}In Oslo"
    ),
}


@each_way
async def test_the_assistant_speaks_whoever_spoke_last(protocol: str, streamed: bool) -> None:
    async with scripted() as (served, prompts):
        for name, (messages, ends) in LAST.items():
            answer = await ask(served, protocol, streamed, messages)
            assert (name, answer.error, answer.text) == (name, "", SAID)
            merged = protocol == "messages" and name == "assistant twice"  # one message, there
            assert prompts[-1].endswith("It rains.And" if merged else ends), (name, prompts[-1][-200:])


@each_way
async def test_a_message_that_was_gone_on_with_is_known_when_it_comes_back(protocol: str, streamed: bool) -> None:
    async with scripted(" in Oslo.") as (served, prompts):
        begun = [SYSTEM, USER, assistant("It rains")]
        answer = await ask(served, protocol, streamed, begun)
        assert answer.text == " in Oslo."
        again = await ask(served, protocol, streamed, [SYSTEM, USER, assistant("It rains in Oslo."), USER])
        assert f"{OPENED}It rains in Oslo.<|im_end|>" in prompts[-1]
        assert again.cached >= answer.prompt_tokens or protocol == "branches"


class Results(NamedTuple):
    """A conversation with calls, and what its prompt has in this order; or what the error says."""

    messages: list[dict[str, Any]]
    order: tuple[str, ...] = ()
    error: str = ""


TWO = assistant(None, weather("a", "Oslo"), weather("b", "Tolvik"))
FIRST, SECOND = result("a", "rain"), result("b", "snow")
RESULTS: dict[str, Results] = {
    "in order": Results([USER, TWO, FIRST, SECOND], ("rain", "snow")),
    "the other way round": Results([USER, TWO, SECOND, FIRST], ("rain", "snow")),
    "and a question": Results([USER, TWO, SECOND, FIRST, BRIEF], ("rain", "snow", "brief")),
    "the same ids in a later turn": Results(
        [USER, TWO, SECOND, FIRST, assistant("So."), USER, TWO, result("b", "hail"), result("a", "fog")],
        ("rain", "snow", "So.", "fog", "hail"),
    ),
    "calls of messages in a row": Results(
        [USER, assistant("One.", weather("a", "Oslo")), assistant("Two.", weather("b", "Tolvik")), SECOND, FIRST],
        ("Oslo", "Tolvik", "rain", "snow"),
    ),
    "an unknown id": Results([USER, TWO, FIRST, result("zz", "snow")], error="'zz'"),
    "twice the same": Results([USER, TWO, FIRST, SECOND, result("b", "hail")], error="'b'"),
    "one is missing": Results([USER, TWO, SECOND], error="'a'"),
    "one is missing, and a question": Results([USER, TWO, SECOND, USER], error="'a'"),
    "one is missing, in an earlier turn": Results([USER, TWO, FIRST, assistant("So."), USER], error="'b'"),
    "all are missing": Results([USER, TWO], error="'a'"),
    "a result of nothing": Results([USER, FIRST], error="'a'"),
}
# Without ids, or with something between: of makers whose protocol allows it.
RESULTS_OF_CHAT: dict[str, Results] = {
    "Ollama's, without ids": Results(
        [
            USER,
            assistant("", weather(None, "Oslo"), weather(None, "Tolvik")),
            result(None, "rain"),
            result(None, "snow"),
        ],
        ("rain", "snow"),
    ),
    "without ids, by name": Results(
        [
            USER,
            assistant("", weather(None, "Oslo"), calling(None, "clock", {})),
            result(None, "noon", name="clock"),
            result(None, "rain", name="weather"),
        ],
        ("rain", "noon"),
    ),
    "empty ids": Results(
        [USER, assistant("", weather("", "Oslo"), weather("", "Tolvik")), result("", "rain"), result("", "snow")],
        ("rain", "snow"),
    ),
    "the same id twice in a turn": Results(
        [USER, assistant(None, weather("x", "Oslo"), weather("x", "Tolvik")), result("x", "rain"), result("x", "snow")],
        ("rain", "snow"),
    ),
    "a reminder between": Results([USER, TWO, SECOND, BRIEF, FIRST], ("rain", "snow", "brief")),
    "a result after the question": Results([USER, TWO, USER, FIRST, SECOND], ("rain", "snow", "Weather in")),
}


@each_way
async def test_results_stand_behind_their_calls(protocol: str, streamed: bool) -> None:
    table = RESULTS | (RESULTS_OF_CHAT if protocol in ("chat", "branches") else {})
    async with scripted() as (served, prompts):
        for name, row in table.items():
            answer = await ask(served, protocol, streamed, row.messages, tools=[WEATHER])
            if row.error:
                assert answer.error.startswith("400 "), (name, answer)
                assert row.error in answer.error, (name, answer.error)
                continue
            assert (name, answer.error) == (name, "")
            said = prompts[-1][prompts[-1].index(USER["content"]) + len(USER["content"]) :]
            places = [said.rfind(text) for text in row.order]
            assert -1 not in places, (name, said)
            assert places == sorted(places), (name, said)
        await served.until_idle()


async def test_results_of_the_sdk_stand_behind_their_calls() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=2048, threads=1) as ctx:
        for name, row in (RESULTS | RESULTS_OF_CHAT).items():
            if row.error and name != "all are missing":
                with pytest.raises(kv.InvalidInput, match=row.error):
                    await ctx.branch(row.messages)
            else:
                branch = await ctx.branch(row.messages)
                places = [branch.text.rfind(text) for text in row.order]
                assert places == sorted(places), name
                await branch.close()
        whole = await ctx.branch([USER, TWO, FIRST, SECOND])
        parts = await ctx.branch([USER, TWO])
        with pytest.raises(kv.InvalidInput, match="'a'"):
            await parts.generate(max_tokens=1)
        await parts.extend([SECOND])
        with pytest.raises(kv.InvalidInput, match="'a'"):
            await parts.generate(max_tokens=1)
        with pytest.raises(kv.InvalidInput, match="'a'"):
            await parts.extend([USER])
        with pytest.raises(kv.InvalidInput, match="two results"):
            await parts.extend([SECOND])
        await parts.extend([FIRST])
        assert parts.tokens == whole.tokens
        assert [message.content for message in parts.messages[2:]] == ["rain", "snow"]


class Arguments(NamedTuple):
    """Arguments of a call as a maker writes them, and what the prompt shows; None where the call is left out."""

    written: Any
    shown: str | None


ARGUMENTS: dict[str, Arguments] = {
    "OpenAI's": Arguments('{"city": "Oslo"}', '{"city": "Oslo"}'),
    "Ollama's": Arguments({"city": "Oslo"}, '{"city": "Oslo"}'),
    "encoded twice": Arguments('"{\\"city\\": \\"Oslo\\"}"', '{"city": "Oslo"}'),
    "nothing": Arguments("", "{}"),
    "white space": Arguments(" ", "{}"),
    "null": Arguments("null", "{}"),
    "empty, encoded twice": Arguments('""', "{}"),
    "a list": Arguments("[1]", '{"value": [1]}'),
    "a text": Arguments('"Oslo"', '{"value": "Oslo"}'),
    "a number": Arguments("7", '{"value": 7}'),
    "cut within a text": Arguments('{"city": "Os', None),
    "cut at the beginning": Arguments("{", None),
    "no JSON": Arguments("city=Oslo", None),
    "Python's": Arguments("{'city': 'Oslo'}", None),
    "nested without end": Arguments("[" * 5000, None),
    "half a character": Arguments('{"city": "\\ud800"}', None),
    "a number too large": Arguments('{"city": 1e999}', None),
    "no number": Arguments('{"city": NaN}', None),
}


@each_way
async def test_arguments_of_others_end_no_conversation(
    protocol: str, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted() as (served, prompts):
        _messages._say_left_out.cache_clear()
        caplog.set_level(logging.WARNING, "agentkv")
        for name, (written, shown) in ARGUMENTS.items():
            history = [USER, assistant("I look.", calling("a", "weather", written)), result("a", "rain"), BRIEF]
            for messages in (history, [*history[:1], *history[1:2], *history[3:]] if shown is None else history):
                if protocol == "messages" and len(messages) < len(history):
                    continue  # there each call has its result, in the next message
                answer = await ask(served, protocol, streamed, messages, tools=[WEATHER])
                assert (name, answer.error, answer.text) == (name, "", SAID)
                said = prompts[-1][prompts[-1].index("I look.") :]
                assert ("rain" in said) == (shown is not None), (name, said)
                assert ("weather" in said) == (shown is not None), (name, said)
                assert shown is None or shown in said, (name, said)
        told = [record for record in caplog.records if "left out of prompts" in record.getMessage()]
        assert len(told) == 1


async def test_messages_of_the_sdk_go_on_after_a_call_that_was_cut() -> None:
    async with kv.testing.replies([[kv.testing.call("weather", city="Oslo")], SAID], capacity=2048, threads=1) as ctx:
        branch = await ctx.branch([USER], tools=[WEATHER])
        await branch.generate(max_tokens=12)
        cut = branch.messages[-1]
        assert cut.calls[0].error is not None
        again = await ctx.branch([*branch.messages, kv.Message("tool", "not run", call_id=cut.calls[0].id), USER])
        assert "not run" not in again.text
        await branch.extend([result(cut.calls[0].id, "not run"), USER])
        assert (await branch.generate(max_tokens=12)).text == SAID


# A template that wants ids of nine letters and digits, and writes them, as Mistral's do.
STRICT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.tool_calls or [] %}"
    "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "({{ c.id }}){{ c.function | tojson }}{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}({{ m.tool_call_id }}){% endif %}"
    "{{ m.content or '' }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IDS = [
    ("a", "b"),
    ("call_0123456789abcdefghijklmn", "toolu_01"),
    ("chatcmpl-tool-1", "call00001"),
    (None, None),
    ("", ""),
]


@pytest.mark.parametrize(("one", "other"), IDS)
async def test_ids_of_others_get_a_form_that_the_template_takes(
    tmp_path: Path, one: str | None, other: str | None
) -> None:
    folder = tmp_path / "strict"
    shutil.copytree(kv.models.nano(), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": STRICT}))
    async with kv.Context.open(folder, capacity=1024, threads=1) as ctx:
        calls = assistant(None, weather(one, "Oslo"), weather(other, "Tolvik"))
        results = [result(one, "rain"), result(other, "snow")]
        branch = await ctx.branch([USER, calls, *(results if one is None or one == other else results[::-1])])
        first, second, *again = re.findall(r"\(([^)]*)\)", branch.text)
        assert again == [first, second]
        assert first != second
        assert branch.text.index("rain") < branch.text.index("snow")
        assert [call.id for call in branch.messages[1].calls] == [one, other]  # as they were given


@each_way
async def test_what_some_readers_take_for_the_end_of_a_line_comes_through(protocol: str, streamed: bool) -> None:
    said = "one\u2028two\u2029three\x85four"
    async with scripted(said) as (served, _):
        assert (await ask(served, protocol, streamed, [USER])).text == said
