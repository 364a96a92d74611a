"""Modules load without what Windows lacks, and what is used there works, or says what it needs before it does anything.

Windows is emulated: our modules see `os` and `signal` without the names that it has none of, cannot import the modules
that it lacks, and asyncio takes no handlers of signals.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import agentkv as kv

ROOT = Path(__file__).resolve().parents[2]
# What Python on Windows does not have. A further one is a word here.
MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_OS = (
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "fchmod", "fork", "getloadavg"),
    *("geteuid", "getuid", "killpg", "mkfifo", "pread", "preadv", "pwrite", "register_at_fork", "sched_getaffinity"),
    *("sysconf", "uname"),
)
OF_SIGNAL = ("SIGBUS", "SIGHUP", "SIGKILL", "SIGQUIT")
USES = re.compile(
    rf"\b(import|from) ({'|'.join(MODULES)})\b|\bos\.({'|'.join(OF_OS)})\b|\bsignal\.({'|'.join(OF_SIGNAL)})\b"
)
# Libraries take what this system has, ours see Windows.
EMULATION = """
import asyncio, builtins, importlib, json, os, signal, sys, types
lacking = json.loads(sys.argv[1])
packages = ("agentkv", "agentkv_command", "agentkv_runtime")
imports = builtins.__import__
def seen(module):
    shown = types.ModuleType(module.__name__)
    vars(shown).update({k: v for k, v in vars(module).items() if k not in lacking[module.__name__]})
    return shown
shown = {"os": seen(os), "signal": seen(signal)}
shown["os"].supports_dir_fd = set()
def refusing(name, globals=None, *rest, **named):
    if str((globals or {}).get("__name__")).split(".")[0] not in packages:
        return imports(name, globals, *rest, **named)
    if name in lacking["modules"]:
        raise ModuleNotFoundError(f"{globals['__name__']} imports {name}")
    return shown.get(name) or imports(name, globals, *rest, **named)
builtins.__import__ = refusing
def lacks_handlers(*_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = lacks_handlers
"""
LOADING = """
for name in sys.argv[2:]:
    importlib.import_module(name)
"""
# What the rows have at hand, and one line of JSON about each.
PLAYING = """
import contextlib, io
from pathlib import Path
import anyio
import agentkv as kv
from agentkv._aio.signals import received_signals
from agentkv.trace import record
from agentkv.cli import app
class CommandFailed(Exception):
    pass
class Terminal(io.StringIO):
    def isatty(self):
        return True
def opened(**how):
    return kv.Context.open(kv.models.nano(), 512, threads=1, **how)
def command(*words, stdin=None):
    said, before = io.StringIO(), sys.stdin
    sys.stdin = stdin or before
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = app([str(word) for word in words], standalone_mode=False)
    finally:
        sys.stdin = before
    if status:
        raise CommandFailed(f"{status}: {said.getvalue()}")
    return said.getvalue()
given = Path(sys.argv[2])
for name, code in json.loads(sys.argv[3]).items():
    folder = given / "out" / name
    folder.mkdir(parents=True)
    scope = {**globals(), "folder": folder}
    try:
        exec("def row():\\n" + "\\n".join("    " + line for line in code.strip().splitlines()), scope)
        outcome = f"works: {scope['row']()}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    left = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    home = Path(os.environ["AGENTKV_HOME"])
    left += [each for each in ("locks", "models") if (home / each).exists()]
    print("\\n" + json.dumps([name, outcome, left]), flush=True)
"""


class Row(NamedTuple):
    """What is used on Windows. Its name, the code, and how the outcome begins: "works", or an error's class and a
    pattern of its text. What fails leaves nothing in `folder` or in AGENTKV_HOME."""

    name: str
    code: str
    outcome: str


NO_LOCKS = r".* no locks on open files .* use Linux, macOS or WSL"
ROWS = (
    Row(
        "save a branch",
        """
with opened().sync() as ctx, ctx.branch("Hello") as branch:
    branch.save(folder / "branch.kv")
""",
        rf"SnapshotError: .*branch.kv cannot be written: {NO_LOCKS}; what was there is unchanged",
    ),
    Row(
        "save several",
        """
with opened().sync() as ctx, ctx.branch("Hello") as branch:
    ctx.save(folder / "all.kv", {"a": branch})
""",
        rf"SnapshotError: .*all.kv cannot be written: {NO_LOCKS}",
    ),
    Row(
        "load what another system saved",
        """
with opened().sync() as ctx, ctx.load(given / "saved.kv") as branch:
    return branch.text
""",
        "works: Hello",
    ),
    Row(
        "offload to a file",
        """
with opened().sync() as ctx, ctx.branch("Hello, who are you? " * 8) as branch:
    before = branch.mark()
    first = branch.generate(max_tokens=4).tokens
    branch.rollback(before)
    return branch.offload(folder) > 0 and branch.generate(max_tokens=4).tokens == first
""",
        "works: True",
    ),
    Row(
        "a prefix cache",
        """
with opened(prefix_cache=folder / "prefixes").sync():
    pass
""",
        rf"InvalidInput: prefix_cache writes files, and {NO_LOCKS}, or leave prefix_cache out",
    ),
    Row(
        "a corpus of drafts",
        """
with opened(speculative=kv.spec.Suffix(corpus=folder / "corpus")).sync():
    pass
""",
        rf"InvalidInput: corpus writes files, and {NO_LOCKS}, or leave corpus out",
    ),
    Row(
        "a workspace",
        """
kv.Workspace(folder)
""",
        r"InvalidInput: .* opens no files beneath an open folder, .* Linux and macOS do",
    ),
    Row(
        "open a GGUF file",
        """
with kv.Context.open(given / "model.gguf").sync():
    pass
""",
        rf"ModelError: .*{NO_LOCKS}. Nothing was exported",
    ),
    Row(
        "open a Hugging Face folder",
        """
with kv.Context.open(given / "checkpoint").sync():
    pass
""",
        rf"ModelError: .*{NO_LOCKS}. Nothing was exported",
    ),
    Row(
        "agentkv export",
        """
command("export", given / "checkpoint", folder / "new" / "model")
""",
        rf"CommandFailed: 1: error: .*model: {NO_LOCKS}. Nothing was exported",
    ),
    Row(
        "agentkv export of a GGUF file",
        """
command("export", given / "model.gguf", folder / "model")
""",
        rf"CommandFailed: 1: error: .*model: {NO_LOCKS}. Nothing was exported",
    ),
    Row(
        "agentkv export-draft",
        """
command("export-draft", given / "checkpoint", given / "checkpoint", folder / "head")
""",
        rf"CommandFailed: 1: error: .*head: {NO_LOCKS}. Nothing was exported",
    ),
    Row(
        "agentkv pull",
        """
command("pull", "owner/model", "--quant", "q4")
""",
        rf"CommandFailed: 1: error: .*{NO_LOCKS}. Nothing was exported",
    ),
    Row(
        "agentkv inspect of a GGUF file",
        """
command("inspect", given / "model.gguf", "--quality")
""",
        rf"CommandFailed: 1: error: .*{NO_LOCKS}. Nothing was exported",
    ),
    Row(
        "record a trace, and write its page",
        """
async def recorded():
    async with opened() as ctx, record(ctx, folder / "trace"):
        await ctx.branch("Hello")
anyio.run(recorded)
command("view", folder / "trace", "--no-open")
return (folder / "trace.html").stat().st_size > 1000
""",
        "works: True",
    ),
    Row(
        "a journal",
        """
agent = kv.Agent("You are Nano, a desk agent.")
with opened(journal=kv.Journal(folder / "runs.db")).sync() as ctx, ctx.trunk(agent) as branch:
    return branch.run(agent, "Thank you!").output
""",
        "works: You are welcome",
    ),
    Row(
        "a chat at a terminal",
        """
command("chat", "qwen3:0.6b", stdin=Terminal())
""",
        r"CommandFailed: 1: error: this system has no termios, .* a pipe or a file as stdin, or use Linux",
    ),
    Row(
        "agentkv runs resume at a terminal",
        """
from agentkv.terminal import resuming
resuming.stdout = type(resuming.stdout)(force_terminal=True)
before, sys.stdin = sys.stdin, Terminal()
try:
    anyio.run(resuming.resuming, None)
finally:
    sys.stdin = before
""",
        "InvalidInput: this system has no termios",
    ),
    Row(
        "a piped chat",
        """
with (given / "lines").open() as lines:
    return command("chat", "--threads", "1", stdin=lines)
""",
        "works: .*You are welcome",
    ),
    Row(
        "signals under asyncio",
        """
async def received():
    with received_signals(signal.SIGTERM) as signals:
        signal.raise_signal(signal.SIGTERM)
        return (await anext(signals)).name
return anyio.run(received)
""",
        "works: SIGTERM",
    ),
    Row(
        "agentkv doctor",
        """
from agentkv.cli import doctor
return dict(doctor._machine())["memory"]
""",
        "works: unknown",
    ),
)


def modules_that_use_them() -> list[str]:
    """Modules of ours whose sources name any of it."""
    found = []
    for folder in ("agentkv", "agentkv_command", "runtime/agentkv_runtime"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if USES.search(path.read_text()):
                parts = path.relative_to((ROOT / folder).parent).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def emulated(script: str, *arguments: str, home: Path | None = None) -> str:
    """What a script prints on Windows, as far as we know it."""
    lacking = json.dumps({"modules": MODULES, "os": OF_OS, "signal": OF_SIGNAL})
    command = [sys.executable, "-c", EMULATION + script, lacking, *arguments]
    env = os.environ if home is None else {**os.environ, "AGENTKV_HOME": str(home), "COLUMNS": "1000"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_loads_without_what_windows_lacks() -> None:
    names = modules_that_use_them()
    assert {"agentkv.terminal.keys", "agentkv.workspaces.beneath", "agentkv_runtime.folder.locks"} <= set(names)
    emulated(LOADING, "agentkv", "agentkv.agents", *names)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str]]]:
    """What came of each row, and what it left."""
    given = tmp_path_factory.mktemp("given")
    with kv.Context.open(kv.models.nano(), 512, threads=1).sync() as ctx, ctx.branch("Hello") as branch:
        branch.save(given / "saved.kv")
    (given / "model.gguf").write_bytes(b"GGUF")
    (given / "checkpoint").mkdir()
    shutil.copy(kv.models.nano() / "tokenizer.json", given / "checkpoint")
    config = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64}
    (given / "checkpoint" / "config.json").write_text(json.dumps(config))
    (given / "checkpoint" / "model.safetensors").touch()
    (given / "lines").write_text("Thank you!\n")
    codes = json.dumps({row.name: row.code for row in ROWS})
    said = emulated(PLAYING, str(given), codes, home=given / "home")
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    return {name: (outcome, left) for name, outcome, left in lines}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_used_works_or_says_what_it_needs(row: Row, outcomes: dict[str, tuple[str, list[str]]]) -> None:
    outcome, left = outcomes[row.name]
    assert re.match(row.outcome, outcome, re.DOTALL), outcome
    assert row.outcome.startswith("works") or left == []
