"""What a server has done before its first request."""

from __future__ import annotations

import subprocess
import sys

_SERVING = """
import anyio, agentkv as kv
from agentkv.serve.app import application
from agentkv.serve.settings import Settings
from anthropic.types import RawMessageStartEvent
from openai.types.responses import Response, ResponseTextDeltaEvent

async def main():
    async with kv.Context.open(kv.models.nano(), capacity=64, threads=1) as ctx:
        application(ctx, Settings(names=("nano",)))
    print([each.__pydantic_complete__ for each in (Response, ResponseTextDeltaEvent, RawMessageStartEvent)])

anyio.run(main)
"""


def test_no_client_waits_for_the_shapes_of_answers() -> None:
    done = subprocess.run([sys.executable, "-c", _SERVING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True]"
