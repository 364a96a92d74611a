"""Records which files of agentkv one token passes through: `python -m tests.way_of_one_token` prints them.

Under a profiler, in a process of its own: threads see it that start after it alone.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import agentkv as kv
from agentkv.serve import Settings, application

PACKAGE = str(Path(kv.__file__).parent) + "/"
QUESTION = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1, "stream": True, "model": "nano"}


class Profile:
    """The files of agentkv that code was entered in since `begin`, on all threads."""

    def __init__(self) -> None:
        self._entered: set[str] = set()
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._entered.add(frame.f_code.co_filename)

    def begin(self) -> None:
        self._entered.clear()

    def files(self) -> list[str]:
        return sorted(file.removeprefix(PACKAGE) for file in self._entered)


async def of_generate(profile: Profile) -> list[str]:
    async with kv.Context.open(kv.models.nano(), threads=1) as ctx:
        branch = await ctx.branch("Hello")
        await branch.generate(max_tokens=1)  # what the first one alone loads
        profile.begin()
        await branch.generate(max_tokens=1)
        return profile.files()


async def of_a_streamed_chat(profile: Profile) -> list[str]:
    async with kv.Context.open(kv.models.nano(), threads=1) as ctx:
        transport = httpx.ASGITransport(application(ctx, Settings(names=("nano",))))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for _ in range(2):
                profile.begin()
                answer = await client.post("/v1/chat/completions", json=QUESTION)
                assert answer.status_code == 200, answer.text
                assert answer.text.endswith("data: [DONE]\n\n")
        return profile.files()


WAYS: dict[str, Callable[[Profile], Any]] = {
    "one token of generate": of_generate,
    "one token of a streamed chat completion": of_a_streamed_chat,
}


def main() -> None:
    profile = Profile()
    for name, way in WAYS.items():
        print(f"{name}:")
        for file in asyncio.run(way(profile)):
            print(f"    {file}")


if __name__ == "__main__":
    main()
