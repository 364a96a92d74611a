"""Modules load without what Windows lacks. What needs it says so when it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
SCRIPT = """
import builtins, importlib, os, signal, sys
modules, of_os, of_signal, ours = [each.split() for each in sys.argv[1:]]
for name in ours:
    importlib.import_module(name)
packages = ("agentkv", "agentkv_command", "agentkv_runtime")
native = ("agentkv_runtime._core", "agentkv_runtime._mlx")
for name in [name for name in sys.modules if name.split(".")[0] in packages and not name.startswith(native)]:
    del sys.modules[name]
for holder, names in ((os, of_os), (signal, of_signal)):
    for name in names:
        vars(holder).pop(name, None)
imports = builtins.__import__
def refusing(name, globals=None, *rest):
    if name in modules and str((globals or {}).get("__name__")).split(".")[0] in packages:
        raise ModuleNotFoundError(f"{globals['__name__']} imports {name}")
    return imports(name, globals, *rest)
builtins.__import__ = refusing
for name in ours:
    importlib.import_module(name)
"""


def modules_that_use_them() -> list[str]:
    """Modules of ours whose sources name any of it."""
    found = []
    for folder in ("agentkv", "agentkv_command", "runtime/agentkv_runtime"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if USES.search(path.read_text()):
                parts = path.relative_to((ROOT / folder).parent).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def loads(names: list[str]) -> None:
    arguments = [" ".join(each) for each in (MODULES, OF_OS, OF_SIGNAL, names)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_everything_loads_without_what_windows_lacks() -> None:
    names = modules_that_use_them()
    assert {"agentkv.terminal.keys", "agentkv.workspaces.beneath", "agentkv_runtime.folder.staging"} <= set(names)
    loads(["agentkv", "agentkv.agents", *names])


def test_workspaces_say_that_they_need_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.supports_dir_fd", set())
    with pytest.raises(kv.InvalidInput, match=r"opens no files beneath an open folder, .* Linux and macOS do"):
        kv.Workspace(tmp_path)
