"""Tools, validators and people that do what nobody expects: the model reads of it, and the turn goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import pytest
from pydantic import AfterValidator
from sniffio import current_async_library

import agentkv as kv
from agentkv._aio.threads import ToolThreads
from agentkv.agents.tool_runner import ToolCallRunner, ToolEnvironment
from tests.agentkv.conftest import loop_threads
from tests.waiting import NEVER, PATIENCE, SOON

pytestmark = pytest.mark.anyio


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


async def turn(tool: kv.Tool[Any, ..., Any], approve: Any = None, **options: Any) -> kv.Run[str]:
    """A turn that calls `look(at="here")`, and then says so."""
    agent = kv.Agent("S", tools=[tool], **options)
    async with kv.testing.replies([kv.testing.call("look", at="here"), "done"], capacity=1024, threads=1) as ctx:
        run = await agent.run(await agent.trunk(ctx), "Look.", approve=approve)
    assert run.text == "done"
    return run


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("no file \udcff"), "OSError: no file ?"),
        (kv.Retry("not \udcff"), "not ?"),
        (Silent(), "Silent: (which cannot be shown)"),
    ],
    ids=["surrogate", "retry", "silent"],
)
async def test_whatever_an_exception_says_is_read(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its traceback goes to the log, and what pytest captures must have a UTF-8 form to leave a worker process.
    monkeypatch.setattr(logging.getLogger("agentkv"), "disabled", True)

    @kv.tool
    async def look(at: str) -> None:
        raise error

    (record,) = (await turn(look)).calls
    assert said in record.content


@pytest.mark.parametrize("result", [["\udcff"], {"a": "\udcff"}])
async def test_text_without_a_utf8_form_is_replaced_wherever_it_is(result: object) -> None:
    @kv.tool
    async def look(at: str) -> object:
        return result

    (record,) = (await turn(look)).calls
    assert (record.status, "?" in record.content) == ("done", True)


async def test_an_error_is_bounded_as_a_result_is() -> None:
    @kv.tool(max_result_tokens=40)
    async def look(at: str) -> None:
        raise ValueError("long " * 5000)

    (record,) = (await turn(look)).calls
    assert record.status == "failed"
    assert len(record.content) < 400


def zero(at: str) -> str:
    raise ZeroDivisionError("nothing there")


def again(at: str) -> str:
    raise kv.Retry("elsewhere")


def silent(at: str) -> str:
    raise Silent


@pytest.mark.parametrize("check", [zero, again, silent])
async def test_a_validator_may_raise_anything(check: Callable[[str], str]) -> None:
    @kv.tool
    async def look(at: Annotated[str, AfterValidator(check)]) -> None: ...

    (record,) = (await turn(look)).calls
    assert (record.status, record.ran) == ("invalid", False)
    assert "bad arguments: " in record.content


async def test_a_result_without_json_is_not_asked_for_again() -> None:
    ran = []

    @kv.tool(retries=3, backoff=0)
    async def look(at: str) -> object:
        ran.append(at)
        return object()

    (record,) = (await turn(look)).calls
    assert (record.status, record.attempts, ran) == ("failed", 1, ["here"])


async def test_a_tool_that_cancels_itself_has_failed() -> None:
    if current_async_library() != "asyncio":
        pytest.skip("trio's tasks cannot")

    @kv.tool
    async def look(at: str) -> None:
        waits = asyncio.get_running_loop().create_future()
        waits.cancel()
        await waits

    heard: list[str] = []
    (record,) = (await turn(look, after_call=lambda _, record: heard.append(record.status))).calls
    assert (record.status, heard) == ("failed", ["failed"])
    assert "cancelled" in record.content


async def test_usage_leaves_out_of_the_prompt_what_the_turn_took_back() -> None:
    def small(number: int) -> int:
        if number > 9:
            raise ValueError("too large")
        return number

    agent: kv.Agent[None, int] = kv.Agent("S", output=Annotated[int, AfterValidator(small)])
    async with kv.testing.replies(["1234567", "5"], capacity=512, threads=1) as ctx:
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, "Q")
        last = run.messages[-1]
        assert run.usage.prompt_tokens == last.start
        assert run.usage.completion_tokens > len(branch) - last.start


async def test_to_deny_without_a_word_is_to_deny() -> None:
    ran = []

    @kv.tool(approve=True)
    async def look(at: str) -> None:
        ran.append(at)

    (record,) = (await turn(look, approve=lambda asked: asked.deny(None))).calls
    assert (record.status, ran) == ("denied", [])
    (record,) = (await turn(look, approve=lambda asked: asked.deny("\udcff"))).calls
    assert (record.status, ran) == ("denied", [])


async def test_a_call_that_waited_for_a_thread_in_vain_never_ran() -> None:
    release, began = threading.Event(), anyio.Event()
    threads, records = ToolThreads(1), []

    @kv.tool(timeout=SOON)
    def look() -> None:
        raise AssertionError("it never comes to this")

    async def emit(event: object) -> None: ...

    async def ask(asked: kv.events.ApprovalAsked) -> None: ...

    async with kv.testing.replies([], capacity=256, threads=1) as ctx:
        context = kv.RunContext(None, await ctx.branch(), kv.Agent())
        desk = ToolEnvironment({"look": look}, context, threads, ctx.tokenizer, emit, ask)

        async def hold() -> None:
            place = await threads.acquire()
            began.set()
            await place.run(lambda: release.wait(PATIENCE))

        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await began.wait()
            waiting = ToolCallRunner(desk, kv.CallRequest("c", "look", {}))
            await waiting.run()
            records.append(waiting.finished)
            release.set()
    assert (records[0].status, records[0].attempts, records[0].ran) == ("timeout", 0, False)
    assert "no thread was free" in records[0].content


def test_options_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(kv.InvalidInput, match="toolsets cannot be read"):
        kv.Agent("S", toolsets=5)  # type: ignore[call-overload]
    with pytest.raises(kv.InvalidInput, match="template"):
        kv.Agent("S", template=5)  # type: ignore[call-overload]


def ends_the_program(where: str) -> tuple[list[str], list[str]]:
    """A tool exits the program in the middle of a turn, in a task of its own. What was left in order, and what was
    not."""
    left: list[str] = []

    async def main() -> None:
        @kv.tool
        async def look(at: str) -> None:
            raise SystemExit(7)

        try:
            async with kv.testing.replies([kv.testing.call("look", at="here")], capacity=512, threads=1) as ctx:
                branch = await kv.Agent("S", tools=[look]).trunk(ctx)
                async with anyio.create_task_group() as group:
                    group.start_soon(kv.Agent("S", tools=[look]).run, branch, "Look.")
                    await anyio.sleep(NEVER)
        finally:
            left.append("the Context")

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - of which library depends
        anyio.run(main, backend=where)
    assert isinstance(caught.value, SystemExit) or caught.group_contains(SystemExit)
    return left, [thread.name for thread in loop_threads()]


def test_a_tool_that_ends_the_program_lets_it_clean_up() -> None:
    assert ends_the_program("asyncio") == (["the Context"], [])
    assert ends_the_program("trio") == (["the Context"], [])


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_tool_that_raises_generator_exit_has_failed(threaded: bool) -> None:
    def plain(at: str) -> None:
        raise GeneratorExit

    async def look(at: str) -> None:
        raise GeneratorExit

    (record,) = (await turn(kv.tool(name="look")(plain if threaded else look))).calls
    assert record.status == "failed"
    assert "GeneratorExit" in record.content
