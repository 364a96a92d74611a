"""Somebody who reads a page and types in what it shows, block after block, in one folder.

| block | what is done with it |
| --- | --- |
| `python` | runs where `await` is allowed; `kv` is agentkv, `ctx` a Context on nano |
| any `title="x.py"` | is saved as x.py; a file of the repository is there already |
| `console` | each line after `$ ` runs in a shell; an export that was made before is not made again |
| `text` | what the block before it prints, `...` standing for anything; an error ends a block with its last line |
| `sh` | installs something, so it is looked at only: make targets and extras must exist |
| `json`, `toml` | must be that |
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import json
import linecache
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import typer

import agentkv as kv
from agentkv.cli import app
from agentkv.serve.routes import BODIES, ENDPOINTS
from tests.docs.blocks import Block
from tests.export_cache import ExportCache

ROOT = Path(__file__).resolve().parents[2]
CAPACITY = 4096
CLIENTS = ("claude", "codex", "aider", "llm")  # programs of others
_SETTING = re.compile(r"[A-Z_]+=")  # of the environment, before a command
_CHECKER = doctest.OutputChecker()


class Reader:
    """Follows one page. Use within the event loop that its blocks are to run on."""

    def __init__(self, folder: Path, exports: ExportCache) -> None:
        self.folder = folder
        self.exports = exports
        self.module = ModuleType("page")
        self.names = self.module.__dict__
        self.names["kv"] = kv

    async def read(self, blocks: list[Block]) -> None:
        """Does what every block asks for; fails with the place in the page where something else comes out."""
        async with contextlib.AsyncExitStack() as stack:
            sys.modules["page"] = self.module  # where dataclasses look for it
            stack.callback(sys.modules.pop, "page")
            stack.callback(self.names.clear)  # types outlive the page in caches, and with them what it named
            if any(block.language == "python" and not block.title and _uses(block.code, "ctx") for block in blocks):
                opened = kv.Context.open(kv.models.nano(), capacity=CAPACITY)
                self.names["ctx"] = await stack.enter_async_context(opened)
            for block in blocks:
                if block.included:
                    assert (self.folder / str(block.title)).read_text(encoding="utf-8") == block.code
                elif block.title:
                    (self.folder / block.title).write_text(block.code, encoding="utf-8")
                else:
                    await getattr(self, f"_{block.language}", self._unknown)(block)

    async def _python(self, block: Block) -> None:
        linecache.cache[block.where] = (len(block.code), None, block.code.splitlines(keepends=True), block.where)
        code = compile(block.code, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                made = eval(code, self.names)
                if inspect.iscoroutine(made):
                    await made
            except kv.AgentKVError as error:
                if block.output is None:
                    raise
                print(f"kv.{type(error).__name__}: {error}")
        _check(block, printed.getvalue())

    async def _console(self, block: Block) -> None:
        printed = ""
        for line in block.code.splitlines():
            assert line.startswith("$ "), f"{block.where}: a console block has commands only, each after `$ `"
            command = line.removeprefix("$ ")
            run = self._export if command.startswith("agentkv export ") else self._run
            printed += await anyio.to_thread.run_sync(run, command)
        _check(block, printed, strict=False)

    def _run(self, command: str) -> str:
        environment = {**os.environ, "COLUMNS": "110"}
        done = subprocess.run(command, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _export(self, command: str) -> str:
        out = self.folder / shlex.split(command)[3]

        def make(kept: Path) -> None:
            said = self._run(command)
            kept.mkdir()
            (kept / "said").write_text(said)
            shutil.move(out, kept / "model")

        kept = self.exports.get("docs " + command.replace("/", "_"), make)
        shutil.copytree(kept / "model", out)
        return (kept / "said").read_text()

    async def _sh(self, block: Block) -> None:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for line in block.code.splitlines():
            command = line.partition("#")[0].split()
            if command[0] == "make":
                assert set(command[1:]) <= set(targets), f"{block.where}: {line}"
            else:
                assert command[:2] == ["pip", "install"], f"{block.where}: {line} is not an installation"
                for extra in re.findall(r"\[(\w+)\]", line):
                    assert extra in extras, f"{block.where}: there is no extra {extra}"

    async def _bash(self, block: Block) -> None:
        """Commands for a shell that stays open: a server, and requests to it. They are checked, not run."""
        for command in block.code.replace("\\\n", " ").strip().split("\n\n"):
            name, *words = [word for word in shlex.split(command, comments=True) if not _SETTING.match(word)]
            if name == "curl":
                url, data = words[0], words[words.index("-d") + 1]
                path = re.sub(r"/branches/\w+", "/branches/{branch}", url.removeprefix("http://127.0.0.1:8080"))
                method_and_path = ("POST", path)
                assert method_and_path in ENDPOINTS, f"{block.where}: {url}"
                body = json.loads(data)
                BODIES[ENDPOINTS[method_and_path]].model_validate(body)
            elif name not in CLIENTS:
                assert name == "agentkv", f"{block.where}: {command}"
                called: Any = typer.main.get_command(app)
                for word in words:
                    if word not in getattr(called, "commands", ()):
                        break
                    called = called.commands[word]
                options = {
                    option for parameter in called.params for option in [*parameter.opts, *parameter.secondary_opts]
                }
                given = {word for word in words if word.startswith("--")}
                assert given <= options, f"{block.where}: {given - options}"

    async def _py(self, block: Block) -> None:
        """What talks to a server that runs elsewhere, or cannot run here."""
        compile(block.code, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def _json(self, block: Block) -> None:
        json.loads(block.code)

    async def _toml(self, block: Block) -> None:
        tomllib.loads(block.code)

    async def _unknown(self, block: Block) -> None:
        raise AssertionError(f"{block.where}: nothing is done with a block of {block.language or 'no language'}")


def _check(block: Block, printed: str, strict: bool = True) -> None:
    if block.output is None:
        assert not (strict and printed), f"{block.where} prints what the page does not show:\n{printed}"
    elif not _CHECKER.check_output(block.output, _trimmed(printed), doctest.ELLIPSIS):
        raise AssertionError(f"{block.where} prints something else.\nThe page:\n{block.output}\nIt:\n{printed}")


def _trimmed(text: str) -> str:
    """As doctest compares it: no white space where a line ends, one newline at the end."""
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def _uses(code: str, name: str) -> bool:
    tree = ast.parse(code)
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
