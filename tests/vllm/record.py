"""Records what a real vLLM answers to a session: `AGENTKV_VLLM_PYTHON=... python -m tests.vllm.record`."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

import agentkv as kv
from tests.agentkv.remote.tape import VLLM_TAPE, Tape, played, session

from .server import WEIGHTS, VLLMServer

QUESTION = [{"role": "user", "content": "What is the weather in Tolvik and in Brasno?"}]


async def record(server: VLLMServer) -> None:
    async with played(Tape(source=server.root)) as tape:
        async with kv.Context.connect(tape.url, tokenizer=kv.models.nano()) as ctx:
            said = await session(ctx, QUESTION)
        answers = {
            request: answer._replace(body=answer.body.replace(str(WEIGHTS), "nano"))
            for request, answer in tape.answers.items()
        }
        Tape(answers).write(VLLM_TAPE)
        print(json.dumps(said)[:2000])
        print(len(answers), "answers,", VLLM_TAPE.stat().st_size, "bytes")


def main() -> None:
    server = VLLMServer(os.environ["AGENTKV_VLLM_PYTHON"], Path(tempfile.mkdtemp()) / "log", threads=2)
    try:
        asyncio.run(record(server))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
