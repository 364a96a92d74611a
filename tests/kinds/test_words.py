"""What errors say: the thing that is wrong, its bound, and what mends it.

A row of TEXTS is a text that cannot be encoded and what is said of it, of FILES a path that no branches are loaded
from, of FORMATS a call format without an end. Each row's words are those of the cause, not of its neighbour.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from rich.console import Console

import agentkv as kv
from agentkv.formats import Calls, Family, JsonCall, TaggedCall
from agentkv.terminal.chat import InterruptHandler, respond
from agentkv.terminal.session import ChatSession

pytestmark = pytest.mark.anyio

TEXTS = {
    "a byte of another encoding": ("caf\udce9", r"the byte 0xe9 at offset 3, which is not UTF-8 .*errors='replace'"),
    "half of a character": ("a\ud83d", "the lone surrogate U\\+D83D at offset 1, half of a character"),
    "bytes": (b"caf\xe9", "the byte 0xe9 at offset 3, which is not UTF-8"),
}
FILES = {
    "a folder": ("/", "Is a directory; give the path of a file of saved branches"),
    "a device": ("/dev/null", "not a regular file; give the path of a file of saved branches"),
    "nothing": ("/nowhere.kv", "there is no file /nowhere.kv; check the path"),
    "no branches": (__file__, "damaged, or no file of agentkv: .*; save the branches again"),
}
FIELD: Any = {
    "open_pattern": "<c>",
    "close": "</c>",
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}
MARKED = Calls(JsonCall(), before="<c>", after="</c>")
FORMATS = {
    "calls without a beginning": (Family("x", FIELD, Calls(JsonCall())), "nothing ends a text .*`marker` of Calls"),
    "white space": (Family("x", FIELD, Calls(JsonCall(), before="\n")), "nothing ends a text"),
    "an argument without an end": (
        Family("x", FIELD, Calls(TaggedCall("{}", "{}=", "", ""), before="<c>", after="</c>")),
        "nothing ends a text .*`after` of TaggedCall",
    ),
    "reasoning without an end": (Family("x", FIELD, MARKED, thinking=("<t>", "")), r"thinking .* is \('<t>', ''\)"),
    "reasoning without markers": (Family("x", FIELD, MARKED, thinking=("", "")), r"thinking .* is \('', ''\)"),
}


def nano(**options: Any) -> Any:
    return kv.Context.open(kv.models.nano(), capacity=2048, threads=1, **options)


async def test_texts_that_cannot_be_encoded() -> None:
    async with nano() as ctx:
        for text, message in TEXTS.values():
            with pytest.raises(kv.InvalidInput, match=message):
                await ctx.branch(text)
            if isinstance(text, str):
                with pytest.raises(kv.InvalidInput, match=message):
                    await ctx.branch([{"role": "user", "content": text}])


async def test_files_without_branches() -> None:
    async with nano() as ctx:
        talk = ChatSession(ctx, kv.Agent("You are Nano."), [])
        await talk.begin()
        for path, message in FILES.values():
            with pytest.raises(kv.SnapshotError, match=message):
                await ctx.load(path)
            with pytest.raises(kv.SnapshotError, match=message):
                await respond(talk, f"/load {quote(str(path))}", Console(file=io.StringIO()), InterruptHandler())


async def test_a_terminal_in_another_encoding_is_understood() -> None:
    async with nano() as ctx:
        talk = ChatSession(ctx, kv.Agent("You are Nano."), [])
        await talk.begin()
        said = io.StringIO()
        await respond(talk, "Who are you, caf\udce9?", Console(file=said), InterruptHandler())
        assert said.getvalue().strip()
        assert [m.content for m in talk.branch.messages if m.role == "user"] == ["Who are you, caf\ufffd?"]


async def asked(form: Family, tool: kv.Tool) -> None:
    async with nano(call_format=form) as ctx:
        agent = kv.Agent("You are Nano.", tools=[tool])
        await agent.run(await agent.trunk(ctx), "What time is it?")


async def test_formats_without_an_end() -> None:
    @kv.tool
    def now(zone: str) -> str:
        """The time."""
        return zone

    for form, message in FORMATS.values():
        with pytest.raises(kv.InvalidInput, match=message):
            await asked(form, now)


async def test_an_argument_may_end_with_a_line() -> None:
    form = Family("x", FIELD, Calls(TaggedCall("{}\n", "{}=", "\n", ""), before="<c>", after="</c>"))
    tool = {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
    grammar = form.fit({}).grammar([tool], choice="required")
    from .test_odd_schemas import reached

    assert reached(grammar, "<c>now\nzone=Oslo\n</c>") == "<c>now\nzone=Oslo\n</c>"
    assert reached(grammar, "<c>now\nzone=Oslo\nand\n</c>") != "<c>now\nzone=Oslo\nand\n</c>"


async def test_a_call_that_has_begun_and_has_no_name_is_none() -> None:
    weather: Any = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    async with nano() as ctx:
        branch = await ctx.branch([{"role": "user", "content": "What is the weather in Oslo?"}], tools=[weather])
        await branch.extend("<tool_call>")
        assert branch.messages[-1].calls == ()
        before = branch.tokens
        async with await branch.fork() as other:
            await other.extend([{"role": "user", "content": "And now?"}])
            assert other.tokens[: len(before)] == before
            assert [message.calls for message in other.messages] == [(), (), ()]
        await branch.generate(max_tokens=60)
        assert [(call.name, call.arguments) for call in branch.messages[-1].calls] == [("weather", {"city": "Oslo"})]


NO_FILES = """
    import asyncio, os, resource
    import agentkv as kv

    async def main():
        async with kv.Context.open(kv.models.nano(), capacity=512, threads=1) as ctx:
            branch = await ctx.branch("hello")
            await ctx.save("saved.kv", {"a": branch})
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")),) * 2)
            async def raised(verb):
                try:
                    await verb()
                except kv.AgentKVError as error:
                    print(type(error).__name__, error)
            async def looked():
                kv.patterns
            held = []
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            await raised(lambda: branch.generate(output=int))
            await raised(looked)
            await raised(lambda: branch.generate(speculative=kv.spec.PromptLookup()))
            await raised(lambda: ctx.load("saved.kv"))
            await raised(lambda: ctx.save("other.kv", {"a": branch}))
            for fd in held:
                os.close(fd)
            print((await branch.generate(output=int, max_tokens=20)).output)

    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_no_file_can_be_opened_any_more(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NO_FILES)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    *errors, value = ran.stdout.splitlines()
    assert len(errors) == 5, ran.stdout
    assert all("Too many open files" in error for error in errors)
    assert [error for error in errors if "again" in error and "save the branches again" in error] == []
    assert errors[0].endswith("close some files, or raise the limit (`ulimit -n`), and try again")
    assert re.fullmatch(r"-?[0-9]+", value)
