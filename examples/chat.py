"""Chat with nano and its tools, as it answers. Ctrl-C stops an answer and keeps what was read.

An empty line ends the chat, and so does Ctrl-C between answers. `python examples/chat.py talk.json` goes on from the
transcript in that file, if it is there, and writes it at the end.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import desk

import agentkv as kv

AGENT = desk.agent("weather", "stock", "calculator")


async def say(branch: kv.Branch, message: str) -> kv.Run[str]:
    """Stream one turn to the terminal. Leaving it early keeps on the branch what was printed."""
    async with AGENT.stream(branch, message, keep_partial=True) as events:
        async for event in events:
            match event:
                case kv.events.TextDelta(text):
                    print(text, end="", flush=True)
                case kv.events.CallFinished(call):
                    print(f"[{call.name} {call.content}]", flush=True)
                case kv.events.Finished():
                    print()
    return events.run


async def say_until_ctrl_c(branch: kv.Branch, message: str) -> None:
    """One turn, with a Stop button."""

    stopped = True

    async def stop() -> None:
        async for _ in signals:
            tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            await say(branch, message)
            stopped = False
            tasks.cancel_scope.cancel()
    if stopped:
        print(" (stopped)")


async def chat(said: list[dict[str, Any]]) -> None:
    """Read questions from the terminal, or from a pipe. `said` is the talk, in OpenAI's form, and grows with it."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        branch = await AGENT.trunk(ctx)
        if said:
            await branch.extend(said[1:])  # the first is the system's, which is on the trunk
        while True:
            if sys.stdin.isatty():
                print("> ", end="", flush=True)
                await anyio.wait_readable(sys.stdin)  # which Ctrl-C ends, as it does not end a thread that reads
            message = (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()
            if not message:
                return
            await say_until_ctrl_c(branch, message)
            said[:] = [each.as_openai() for each in branch.messages]


def main(transcript: Path | None = None) -> None:
    """Chat, between reading a transcript and writing it."""
    said = json.loads(transcript.read_text()) if transcript and transcript.exists() else []
    with suppress(KeyboardInterrupt):
        anyio.run(chat, said)
    if transcript:
        transcript.write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
