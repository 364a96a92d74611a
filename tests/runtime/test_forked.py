"""Processes that fork once the thread pool was used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

SCRIPT = """
import asyncio, os, sys
import agentkv as kv

async def generate(threads):
    async with kv.Context.open(sys.argv[1], capacity=512, threads=threads) as ctx:
        branch = await ctx.branch([5] * 200)
        return (await branch.generate(max_tokens=4)).tokens

tokens = asyncio.run(generate(8))
for uses_it in (False, True):
    child = os.fork()
    if child == 0:
        if uses_it and asyncio.run(generate(None)) != tokens:
            sys.exit(4)
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_children_exit_as_they_are_told(tiny_exported_folder: Callable[..., Path]) -> None:
    folder = tiny_exported_folder("llama")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.split() == ["3", "3"]
