"""Chat templates of any make, by each door: agents, the chat, the server.

One more case is a row of `KINDS`: a template, written for this table, that behaves as those of some makers do.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import agentkv as kv
from agentkv.agents.answer_format import ANSWER_NOW
from agentkv.agents.trunks import tools_in_prompt
from tests.rows import in_turn

from .doors import ANSWER, DOORS, MORE, QUESTION, RESULT, SYSTEM, Seen, agent_of, opened, weather, with_template

TURN = "{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
CALLS = "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}"
END = "{{ '<|im_end|>\n' }}"
REPLY = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
LOOP, ENDED = "{% for m in messages %}", "{% endfor %}"
WRITTEN = TURN + CALLS + END
TOOLS = "{% if tools %}{{ '<|im_start|>tools\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
PLAIN = TOOLS + LOOP + WRITTEN + ENDED + REPLY
NO_SYSTEM = "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
IN_TURNS = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
)
# The system prompt with the first question, and nothing before it.
FOLDED = (
    "{{ '<|endoftext|>' }}{% set system = messages[0].content if messages and messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if system else messages) %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if loop.first %}{{ system + '\n\n' if system }}{{ tools | tojson if tools }}{% endif %}"
    "{{ (m.content or '') }}" + CALLS + END + ENDED + REPLY
)
# The system prompt and the tools with the last question, wherever that is.
WITH_LAST = (
    "{{ '<|endoftext|>' }}{% set at = namespace(last=-1) %}"
    "{% for m in messages if m.role == 'user' %}{% set at.last = loop.index0 %}{% endfor %}"
    "{% set at.asked = -1 %}{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'user' %}{% set at.asked = at.asked + 1 %}{% if at.asked == at.last %}"
    "{{ tools | tojson if tools }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}{% endif %}{% endif %}"
    "{{ (m.content or '') }}" + CALLS + END + ENDED + REPLY
)
NEEDS_USER = (
    "{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('no user') }}{% endif %}"
)


# As many of theirs as ours, but for calls and results.
IN_TURNS_WITH_CALLS = (
    "{% set at = namespace(n=0) %}{% for m in messages if m.role == 'user' or (m.role == 'assistant' and not "
    "m.tool_calls) %}{% if (m.role == 'user') != (at.n % 2 == 0) %}{{ raise_exception('Roles must alternate') }}"
    "{% endif %}{% set at.n = at.n + 1 %}{% endfor %}"
)


class Kind(NamedTuple):
    """A template, and what its makers have in common."""

    template: str
    shows_tools: bool = True
    begins: bool = True  # does anything stand before every question?
    in_order: bool = True  # are messages written in their order?


KINDS = {
    "every role (ChatML)": Kind(PLAIN),
    "a question first (Qwen3.5)": Kind(NEEDS_USER + PLAIN),
    "a system prompt at the front alone (Qwen3.5)": Kind(
        TOOLS
        + LOOP
        + "{% if m.role == 'system' and not loop.first %}{{ raise_exception('must be first') }}{% endif %}"
        + WRITTEN
        + ENDED
        + REPLY
    ),
    "no system prompt (Gemma 2)": Kind(TOOLS + LOOP + NO_SYSTEM + WRITTEN + ENDED + REPLY),
    "system prompts are dropped": Kind(
        TOOLS + LOOP + "{% if m.role != 'system' %}" + WRITTEN + "{% endif %}" + ENDED + REPLY
    ),
    "with the first question (Gemma 3)": Kind(FOLDED),
    "with the last question (Mistral)": Kind(WITH_LAST, in_order=False),
    "tools with the first question (Llama 3.1)": Kind(
        "{% if tools and not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('no') }}"
        "{% endif %}" + LOOP + TURN + "{% if tools and m.role == 'user' and messages[:loop.index0] | "
        "selectattr('role', 'equalto', 'user') | list | length == 0 %}{{ tools | tojson }}{% endif %}"
        + CALLS + END + ENDED + REPLY
    ),
    "users and assistants in turns, and nobody else": Kind(
        LOOP + IN_TURNS + WRITTEN + ENDED + REPLY, shows_tools=False
    ),
    "users and assistants in turns, beside calls and results (Mistral)": Kind(
        IN_TURNS_WITH_CALLS + PLAIN
    ),
    "results are refused": Kind(
        TOOLS + LOOP + "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" + WRITTEN + ENDED + REPLY
    ),
    "results are dropped (Phi 3.5)": Kind(
        LOOP + "{% if m.role != 'tool' %}" + TURN + END + "{% endif %}" + ENDED + REPLY, shows_tools=False
    ),
    "calls are dropped (LFM 2)": Kind(TOOLS + LOOP + TURN + END + ENDED + REPLY),
    "calls break it off (Kimi K2)": Kind(
        TOOLS + LOOP + "{% if m.tool_calls %}{{ messages.append(m) }}{% endif %}" + TURN + END + ENDED + REPLY
    ),
    "tools break it off": Kind(
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + LOOP + WRITTEN + ENDED + REPLY, shows_tools=False
    ),
    "for tools alone (Command R)": Kind(
        "{{ '<|im_start|>tools' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|im_end|>\n' }}"
        + LOOP
        + WRITTEN
        + ENDED
        + REPLY
    ),
    "content in parts (SmolVLM)": Kind(
        TOOLS + LOOP + "{{ '<|im_start|>' + m.role + '\n' + (m.content[0].text or '') }}" + CALLS + END + ENDED + REPLY
    ),
    "descriptions throughout (Command R+)": Kind(
        "{% for t in tools or [] %}{{ t | tojson }}{% for p in t.function.parameters.properties.values() %}"
        "{{ p.description | trim }}{% endfor %}{% endfor %}" + LOOP + WRITTEN + ENDED + REPLY
    ),
    "no content that is none (QwQ)": Kind(
        TOOLS + LOOP + "{% if m.tool_calls and not loop.last %}{{ m.content.split('.')[0] }}{% endif %}" + WRITTEN
        + ENDED + REPLY
    ),
    "no control tokens": Kind(
        "{{ (tools | tojson) + '\n' if tools }}" + LOOP + "{{ '### ' + m.role + ':\n' + (m.content or '') }}" + CALLS
        + "{{ '\n' }}" + ENDED + "{% if add_generation_prompt %}{{ '### assistant:\n' }}{% endif %}"
    ),
    "the question first of all": Kind(
        LOOP + "{% if m.role != 'system' %}{{ m.content or '' }}" + CALLS + END + "{% endif %}" + ENDED
        + "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}" + TOOLS + REPLY,
        begins=False, in_order=False,
    ),
}  # fmt: skip
BY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(("name", "door"), in_turn([*KINDS], [*DOORS]))
async def test_every_template_opens_by_every_door(tmp_path: Path, name: str, door: str) -> None:
    seen = Seen()
    await DOORS[door](with_template(KINDS[name].template, tmp_path / "model"), seen)
    told = [prompt for prompt in seen.prompts if SYSTEM in prompt]
    answered = [prompt for prompt in told if QUESTION in prompt and RESULT in prompt]
    assert told
    assert answered
    for prompt in told:
        assert prompt.count(SYSTEM) == 1
        assert prompt.count("The weather in a city.") == 1 or door != "agent"
    for prompt in answered:
        question, called, result = map(prompt.index, (QUESTION, '"Oslo"', RESULT))
        assert question < called < result


@BY_KIND
async def test_a_turn_that_would_not_end_is_asked_for_its_answer(tmp_path: Path, kind: Kind) -> None:
    """Behind results, where some templates take no question."""
    seen = Seen()
    async with opened(with_template(kind.template, tmp_path / "model"), seen) as ctx:
        agent = kv.Agent(SYSTEM, tools=[weather], max_rounds=2)
        branch = await agent.trunk(ctx)
        for question in (QUESTION, MORE):
            run = await agent.run(branch, question)
            assert (run.output, run.rounds) == (ANSWER, 2 if question == QUESTION else 1)
        (asked,) = (prompt for prompt in seen.prompts if ANSWER_NOW in prompt and MORE not in prompt)
        assert asked.count(RESULT) == asked.count(ANSWER_NOW) == 1
        if kind.in_order:
            assert asked.index(QUESTION) < asked.index(RESULT) < asked.index(ANSWER_NOW)
        roles = [message.role for message in branch.messages]
        assert roles == ["system", "user", "assistant", "tool", "user", "assistant", "user", "assistant"]
        assert [message.content for message in branch.messages][3:5] == [RESULT, ANSWER_NOW]


@BY_KIND
async def test_what_no_question_changes_is_prefilled_once(tmp_path: Path, kind: Kind) -> None:
    """Whatever a question begins with; and what is taken back to there is what it was."""
    seen, agent = Seen(), agent_of()
    async with opened(with_template(kind.template, tmp_path / "model"), seen) as ctx:
        trunk = await agent.trunk(ctx)
        start, tokens = trunk.mark(), trunk.tokens
        assert bool(tokens) == kind.begins
        for question in ("a", "Z", "7", "\n\nNew", "  spaces", "\u4e2d\u6587", "<|im_end|>", ".", '"', "\u00e9"):
            await agent.run(trunk, question)
            assert trunk.tokens[: len(tokens)] == tokens
            await trunk.rollback(start)
            assert [(message.role, message.content) for message in trunk.messages] == [("system", SYSTEM)]
            assert tools_in_prompt(trunk) == ["weather"]


@BY_KIND
async def test_a_trunk_is_saved_and_loaded_with_what_it_has_yet_to_say(tmp_path: Path, kind: Kind) -> None:
    seen, agent = Seen(), agent_of()
    folder = with_template(kind.template, tmp_path / "model")
    async with opened(folder, seen) as ctx:
        trunk = await agent.trunk(ctx)
        await trunk.save(tmp_path / "trunk")
        expected = await agent.run(trunk, QUESTION)
    async with opened(folder, seen) as ctx:
        loaded = await ctx.load(tmp_path / "trunk")
        assert [message.content for message in loaded.messages] == [SYSTEM]
        assert (await agent.run(await loaded.fork(), QUESTION)).messages == expected.messages
    assert seen.prompts[:2] == seen.prompts[2:]


@BY_KIND
async def test_an_agent_without_instructions_says_nothing_for_a_system(tmp_path: Path, kind: Kind) -> None:
    seen = Seen()
    async with opened(with_template(kind.template, tmp_path / "model"), seen) as ctx:
        agent = kv.Agent(tools=[weather])
        trunk = await agent.trunk(ctx)
        assert trunk.messages == []
        run = await agent.run(trunk, QUESTION)
        assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
        assert [message.role for message in trunk.messages] == ["user", "assistant", "tool", "assistant"]
        await trunk.rollback(trunk.messages[0].start)
        assert (await agent.run(trunk, QUESTION)).output == ANSWER
    assert seen.prompts[:2] == seen.prompts[2:]
    if kind.shows_tools:  # else they are told in a system prompt
        assert not any("system" in prompt for prompt in seen.prompts)


@pytest.mark.parametrize("more", [[], [{"role": "system", "content": "Be brief."}]], ids=["one", "two"])
@BY_KIND
async def test_branches_of_a_system_prompt_go_on_with_messages(
    tmp_path: Path, kind: Kind, more: list[dict[str, str]]
) -> None:
    """As one that was given all of them at once."""
    seen = Seen()
    system, user = {"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}
    async with opened(with_template(kind.template, tmp_path / "model"), seen) as ctx:
        branch = await ctx.branch([system])
        for message in more:
            await branch.extend([message])
        await branch.extend([user])
        assert branch.tokens == (await ctx.branch([system, *more, user])).tokens
        assert branch.tokens == ctx.tokenizer.apply_chat([system, *more, user])
        assert [message.content for message in branch.messages] == [m["content"] for m in (system, *more, user)]
        assert branch.text.count(SYSTEM) == branch.text.count(QUESTION) == 1
        empty = await ctx.branch()
        await empty.extend([system])
        await empty.extend([*more, user])
        assert empty.tokens == branch.tokens


@pytest.mark.parametrize(
    "messages",
    [
        [("user", "One."), ("user", "Two.")],
        [("user", "One."), ("assistant", "Two."), ("assistant", "Three."), ("user", "Four.")],
        [("developer", "One."), ("user", "Two.")],
        [("system", "One."), ("developer", "Two."), ("user", "Three.")],
        [("user", "One."), ("assistant", "Two."), ("system", "Three."), ("user", "Four.")],
        [("user", "One."), ("system", "Two.")],
        [("system", "One.")],
    ],
    ids=lambda messages: " ".join(role for role, _ in messages),
)
@BY_KIND
async def test_whatever_is_said_is_read_once_and_in_order(
    tmp_path: Path, kind: Kind, messages: list[tuple[str, str]]
) -> None:
    seen = Seen()
    async with opened(with_template(kind.template, tmp_path / "model"), seen) as ctx:
        given = [{"role": role, "content": content} for role, content in messages]
        text = ctx.tokenizer._render_reply(given, None, {}).text
        assert all(text.count(content) == 1 for _, content in messages)
        if kind.in_order:
            places = [text.index(content) for _, content in messages]
            assert places == sorted(places)
