"""What messages are held to: choices, required tools in order or not, a final tool, tools of one turn."""

from __future__ import annotations

from typing import Any

import pytest

import agentkv as kv
from agentkv.agents.steering import CallRules, Steering

from .conftest import NO_CALL, ONE_CALL, OpenDesk, as_tool, desk_agent

pytestmark = pytest.mark.anyio

NAMES = ["weather", "stock", "train"]


def held(
    steering: Steering, done: list[str], given: str = "auto", called: bool | None = None, last: bool = False
) -> CallRules:
    return steering.next(given, done, bool(done) if called is None else called, last)


ONLY = frozenset


@pytest.mark.parametrize(
    ("options", "done", "expected"),
    [
        ({}, [], CallRules()),
        ({"tool_choice": "required"}, [], CallRules("required")),
        ({"tool_choice": "required"}, ["stock"], CallRules()),
        ({"tool_choice": "stock"}, [], CallRules("stock")),
        ({"tool_choice": "stock"}, ["stock"], CallRules()),
        ({"tool_choice": "none"}, ["stock"], CallRules("none")),
        ({"allowed_tools": ["stock"]}, [], CallRules("auto", ONLY({"stock"}))),
        ({"required": ["stock", "train"]}, [], CallRules("required", ONLY({"stock"}), 1)),
        ({"required": ["stock", "train"]}, ["train"], CallRules("required", ONLY({"stock"}), 1)),
        ({"required": ["stock", "train"]}, ["stock"], CallRules("required", ONLY({"train"}), 1)),
        ({"required": ["stock", "train"]}, ["stock", "weather", "train"], CallRules()),
        ({"required": ["stock", "stock"]}, ["stock"], CallRules("required", ONLY({"stock"}), 1)),
        ({"required": {"stock", "train"}}, [], CallRules("required", ONLY({"stock", "train"}))),
        ({"required": {"stock", "train"}}, ["train"], CallRules("required", ONLY({"stock"}))),
        ({"required": ["stock"], "final_tool": "train"}, [], CallRules("required", ONLY({"stock"}), 1)),
        ({"required": ["stock"], "final_tool": "train"}, ["stock"], CallRules("required")),
        ({"final_tool": "train", "tool_choice": "stock"}, [], CallRules("stock")),
        ({"final_tool": "train", "tool_choice": "stock"}, ["stock"], CallRules("required")),
    ],
)
def test_what_the_next_message_is_held_to(options: dict[str, Any], done: list[str], expected: CallRules) -> None:
    steering = Steering(**options)
    assert held(steering, done, given=str(steering.tool_choice)) == expected


def test_the_last_message_is_a_call_of_the_final_tool() -> None:
    assert held(Steering(final_tool="train"), ["stock"], last=True) == CallRules("train")


@pytest.mark.parametrize(
    ("choice", "allowed", "may"),
    [("auto", None, NAMES), ("required", ["stock"], ["stock"]), ("none", None, []), ("train", None, ["train"])],
)
def test_which_tools_a_message_may_call(choice: str, allowed: list[str] | None, may: list[str]) -> None:
    to = CallRules(choice, None if allowed is None else frozenset(allowed))
    assert [name for name in NAMES if to.allows(name)] == may
    assert to.must_call == (choice in ("required", "train"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tool_choice": 3}, "tool_choice is int 3"),
        (
            {"tool_choice": "plane"},
            "tool_choice is str 'plane', but it must be auto, required, none, or the name of a tool; the tools are "
            "weather, stock",
        ),
        ({"required": "stock"}, "required is str 'stock', but it must be a list or a set"),
        ({"required": ["plane"]}, "required has str 'plane'"),
        ({"required": [3]}, "required has int 3"),
        ({"required": ["stock"] * 8}, "max_rounds is 8, but required tools and the answer take 9"),
        ({"required": {"stock"}, "max_rounds": 1}, "take 2 messages"),
        ({"required": ["stock"], "final_tool": "stock"}, "called last anyway"),
        ({"required": ["stock"], "tool_choice": "none"}, "leave one of them out"),
        ({"final_tool": "stock", "tool_choice": "none"}, "leave one of them out"),
        ({"final_tool": "plane"}, "final_tool has str 'plane'"),
        ({"final_tool": 3}, "final_tool is int 3"),
        ({"final_tool": "stock", "output": int}, "leave one of them out"),
        ({"max_message_tokens": 0}, "max_message_tokens"),
        ({"max_calls_per_message": 0}, "max_calls_per_message"),
        ({"max_repeats": -1}, "max_repeats"),
    ],
)
def test_what_cannot_be_is_said_when_the_agent_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=said):
        desk_agent(*NAMES, **options)


@pytest.mark.parametrize(
    ("steer", "said"),
    [
        ({"allowed_tools": ["plane"]}, "allowed_tools has str 'plane'"),
        ({"allowed_tools": "stock"}, "allowed_tools is str 'stock'"),
        ({"allowed_tools": ["stock"], "required": ["train"]}, "train, which is not among allowed_tools"),
        ({"allowed_tools": ["stock"], "tool_choice": "train"}, "train, which is not among allowed_tools"),
        ({"allowed_tools": [], "tool_choice": "required"}, "there is no tool to call"),
        ({"tool_choice": lambda ctx: 3}, "tool_choice returned int 3"),
        ({"tool_choice": lambda ctx: "plane"}, "tool_choice is str 'plane'"),
    ],
)
async def test_what_cannot_be_is_said_before_anything_changes(
    open_desk: OpenDesk, steer: dict[str, Any], said: str
) -> None:
    agent = desk_agent(*NAMES)
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        with pytest.raises(kv.InvalidInput, match=said):
            await agent.run(branch, ONE_CALL, **steer)
        assert branch.tokens == before


def test_an_agent_without_tools_must_not_be_asked_for_calls() -> None:
    with pytest.raises(kv.InvalidInput, match="there is no tool to call"):
        kv.Agent(tool_choice="required")


@pytest.mark.parametrize("choice", ["required", "stock"])
async def test_the_first_message_must_call_and_the_turn_ends(open_desk: OpenDesk, choice: str) -> None:
    agent = desk_agent(*NAMES)
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        assert (await agent.run(await trunk.fork(), NO_CALL)).calls == ()
        run = await agent.run(await trunk.fork(), NO_CALL, tool_choice=choice)
        assert run.calls
        assert run.text
        if choice == "stock":
            assert run.calls[0].name == "stock"


async def test_no_call_where_none_is_chosen(open_desk: OpenDesk) -> None:
    agent = desk_agent(*NAMES, tool_choice="none")
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert (run.calls, run.rounds) == ((), 1)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_function_chooses_for_each_message(open_desk: OpenDesk, kind: str) -> None:
    asked: list[list[str]] = []

    def plain(ctx: kv.RunContext[Any]) -> str:
        asked.append([call.name for call in ctx.calls])
        return ["stock", "train", "none"][len(asked) - 1]

    async def later(ctx: kv.RunContext[Any]) -> str:
        return plain(ctx)

    agent = desk_agent(*NAMES, tool_choice=plain if kind == "plain" else later)
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), NO_CALL)
        assert [call.name for call in run.calls] == ["stock", "train"]
        assert asked == [[], ["stock"], ["stock", "train"]]


async def test_required_tools_are_called_in_order(open_desk: OpenDesk) -> None:
    agent = desk_agent(*NAMES, required=["train", "stock"])
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        names = [call.name for call in run.calls]
        assert names.index("train") < names.index("stock")
        assert run.text


async def test_required_tools_of_a_set_are_called_in_any_order(open_desk: OpenDesk) -> None:
    agent = desk_agent(*NAMES)
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL, required={"train", "stock"})
        assert {call.name for call in run.calls} >= {"train", "stock"}


async def test_a_required_tool_that_fails_is_called_again() -> None:
    fails = [OSError("no line"), OSError("no line"), None]

    def stock(product: str) -> dict[str, int]:
        fault = fails.pop(0)
        if fault:
            raise fault
        return {"count": 3}

    agent = desk_agent(tools=[as_tool("stock", stock)], required=["stock"])
    calls = [kv.testing.call("stock", product="Lumora")] * 3
    async with kv.testing.replies([*calls, "There are 3."]) as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert [call.status for call in run.calls] == ["failed", "failed", "done"]
        assert run.text == "There are 3."


async def test_steps_and_a_turn_that_goes_on_count_what_was_called_since_the_question(open_desk: OpenDesk) -> None:
    agent = desk_agent(*NAMES, required=["train", "stock"])
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        await trunk.extend([{"role": "user", "content": ONE_CALL}])
        branch = await trunk.fork()
        names: list[str] = []
        for _ in range(8):
            step = await agent.step(branch)
            names += [call.name for call in step.calls]
            if step.done:
                break
        assert step.done
        assert names[:2] == ["train", "stock"]
        assert (await agent.step(trunk)).calls[0].name == "train"
        assert "train" not in [call.name for call in (await agent.run(trunk)).calls]


@pytest.mark.parametrize(("gives", "output"), [({"id": 7}, {"id": 7}), (None, {"item": "call Mirela"}), (0, 0)])
async def test_a_final_tool_is_the_answer(gives: Any, output: Any) -> None:
    agent = desk_agent(
        "stock", tools=[as_tool("add_todo", lambda item: gives)], required=["stock"], final_tool="add_todo"
    )
    script = [kv.testing.call("stock", product="Lumora"), kv.testing.call("add_todo", item="call Mirela")]
    async with kv.testing.replies(script) as ctx:
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, ONE_CALL)
        assert run.output == output
        assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant", "tool"]
        assert branch.messages[1:] == list(run.messages)


async def test_an_answer_without_the_final_tool_cannot_be_written(open_desk: OpenDesk) -> None:
    agent = desk_agent(*NAMES, final_tool="train")
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), NO_CALL)
        assert run.calls[-1].name == "train"
        assert run.output == run.calls[-1].result


@pytest.mark.parametrize("name", ["hermes", "mistral", "deepseek-v3"])
async def test_nothing_is_called_behind_the_final_tool(name: str) -> None:
    agent = desk_agent("stock", "add_todo", final_tool="add_todo")
    stock, todo = kv.testing.call("stock", product="Lumora"), kv.testing.call("add_todo", item="call Mirela")
    async with kv.testing.replies([[stock, todo, stock]], call_format=name) as ctx:
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, ONE_CALL)
        assert [call.name for call in run.calls] == ["stock", "add_todo"]
        assert [message.role for message in branch.messages[1:]] == ["user", "assistant", "tool", "tool"]


async def test_a_final_tool_that_fails_does_not_end_the_turn() -> None:
    tried: list[str] = []

    def add_todo(item: str) -> str:
        tried.append(item)
        if len(tried) == 1:
            raise kv.Retry("say who")
        return "added"

    agent = desk_agent(tools=[as_tool("add_todo", add_todo)], final_tool="add_todo")
    script = [kv.testing.call("add_todo", item="call"), kv.testing.call("add_todo", item="call Mirela")]
    async with kv.testing.replies(script) as ctx:
        assert (await agent.run(await agent.trunk(ctx), ONE_CALL)).output == "added"


async def test_tools_of_one_turn_take_no_prefill(open_desk: OpenDesk) -> None:
    agent = desk_agent(*NAMES)
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        kids = await trunk.fork(2)
        ran: list[int] = []
        for kid, steer in zip(kids, ({}, {"allowed_tools": ["train"]}), strict=True):
            before = ctx.stats.prefilled
            run = await agent.run(kid, ONE_CALL, **steer)  # type: ignore[call-overload]
            ran.append(ctx.stats.prefilled - before)
            assert {call.name for call in run.calls} <= ({"train"} if steer else set(NAMES))
        assert kids[0].tokens[: len(trunk)] == kids[1].tokens[: len(trunk)]
        async with kv.testing.replies(["Hello."]) as other:
            assert (await agent.run(await agent.trunk(other), NO_CALL, allowed_tools=[])).text == "Hello."


async def test_a_call_of_another_tool_is_refused_in_words(table: Any) -> None:
    """Where no grammar held it."""
    from dataclasses import replace

    async with table(as_tool("stock"), as_tool("train")) as desk:
        desk.desk = replace(desk.desk, rules=CallRules("auto", frozenset({"train"})))
        record = await desk.run("stock", product="Lumora")
        assert (record.status, record.attempts) == ("invalid", 0)
        assert record.error == "stock may not be called now; of the tools train may"


async def test_a_stream_and_verbs_that_block_are_steered_too(open_desk: OpenDesk) -> None:
    agent = desk_agent(*NAMES)
    async with open_desk() as ctx:
        async with agent.stream(await agent.trunk(ctx), NO_CALL, tool_choice="stock") as events:
            async for _ in events:
                pass
        assert events.run.calls[0].name == "stock"


def test_a_branch_that_blocks_takes_how_a_turn_is_steered() -> None:
    agent = desk_agent(*NAMES)
    with kv.Context.open(kv.models.nano(), capacity=2048, threads=1).sync() as ctx:
        assert ctx.trunk(agent).run(agent, NO_CALL, tool_choice="stock").calls[0].name == "stock"


@pytest.mark.parametrize("most", [1, 2])
async def test_a_message_makes_so_many_calls_at_most(most: int) -> None:
    agent = desk_agent("weather", max_calls_per_message=most)
    two = [kv.testing.call("weather", city=city) for city in ("Oslo", "Rome")]
    script: list[Any] = [two, "Cold."]
    async with kv.testing.replies(script[:most]) as ctx:
        branch = await agent.trunk(ctx)
        if most == 2:
            assert len((await agent.run(branch, ONE_CALL)).calls) == 2
        else:
            with pytest.raises(kv.StepFailed):  # the grammar does not allow the second
                await agent.run(branch, ONE_CALL)
