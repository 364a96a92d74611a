"""`agentkv pull`, `list` and `rm`, and opening what was pulled."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pexpect
import pytest
from agentkv_runtime.folder.manifest import Quantization
from agentkv_runtime.store.catalogue import catalogue, listed
from agentkv_runtime.store.entries import Entry, Options, entries
from typer.testing import CliRunner, Result

import agentkv as kv
from agentkv.cli import app
from tests.conftest import FolderFactory
from tests.runtime.store.hub_server import COMMIT, LARGE, HubServer
from tests.runtime.store.stores import ollama_manifest, ollama_model, write
from tests.runtime.store.test_hub import REPO, WEIGHTS, environment
from tests.waiting import PATIENCE

COMMAND = [sys.executable, "-m", "agentkv.cli"]


def run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}, input=answer)


def on_a_terminal(command: list[str], env: dict[str, str]) -> str:
    """What a command shows on a terminal of its own; it must succeed."""
    master, slave = pty.openpty()
    process = subprocess.Popen(command, env={**env, "TERM": "xterm", "COLUMNS": "120"}, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        shown += data
    os.close(master)
    text = shown.decode()
    assert process.wait() == 0, text
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def without_torch(folder: Path) -> dict[str, str]:
    """What makes a program of its own believe that torch is not installed."""
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    return {"PYTHONPATH": str(folder)}


def test_two_pulls_of_a_model_are_one_and_it_opens_by_its_name(
    tiny_hf_folder: FolderFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubServer(REPO, tiny_hf_folder("llama", layers=1)) as hub:
        env = environment(hub, tmp_path) | without_torch(tmp_path)
        hub.hold.clear()
        pull = [*COMMAND, "pull", REPO]
        first = subprocess.Popen(pull, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert hub.held.wait(PATIENCE)
        second = subprocess.Popen(pull, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        assert second.stderr.readline() == "Another process downloads the same model: waiting for it.\n"
        hub.hold.set()
        said = [process.communicate(timeout=PATIENCE)[0] for process in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0)
        assert said[0] == said[1]
        assert said[0].startswith(f"Pulled {REPO} (cpu, q4, fp32, ")
        assert f"Open it with: kv.Context.open('{REPO}')\n" in said[0]
        assert hub.sent(WEIGHTS) == [""]

        # On a terminal, and with nothing left to do.
        shown = on_a_terminal(pull, {**env, "HF_HUB_OFFLINE": "1"})
        assert " ".join(shown.split()).endswith(" ".join(said[0].split()))

    for variable in ("AGENTKV_HOME", "HF_HOME"):
        monkeypatch.setenv(variable, env[variable])

    async def ask(quant: str | None = None) -> str:
        async with kv.Context.open(REPO, capacity=64, quant=quant) as ctx:
            await (await ctx.branch("the quick")).generate(max_tokens=2)
            return repr(ctx)

    assert anyio.run(ask) == "<Context tiny: 0 branches>"
    with pytest.raises(kv.ModelError, match=f"agentkv pull {REPO} --quant 8da4w"):
        anyio.run(ask, "8da4w")

    listed = run("list").output
    for expected in (REPO, "cpu, q4, fp32", COMMIT[:8], "just now", "KiB"):
        assert expected in listed
    assert run("rm", REPO, answer="n\n").exit_code == 1
    assert run("rm", REPO, answer="").exit_code == 1
    assert REPO in run("list").output
    [entry] = entries()
    entry.called("another")
    assert run("rm", "another", "--yes").output == f"Removed another (0 B). What it shares with {REPO} stays.\n"
    removed = run("rm", REPO, "--yes")
    assert (removed.exit_code, removed.output.startswith(f"Removed {REPO}")) == (0, True)
    assert "stays" not in removed.output
    assert "No models in" in run("list").output
    with pytest.raises(kv.ModelError, match=f"no model that was pulled.*agentkv pull {REPO}"):
        anyio.run(ask)


def test_what_is_not_there_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path))
    done = run("rm", "owner/[bold]model", "--yes")
    assert done.exit_code == 1
    assert "no model is called owner/[bold]model. See what there is with: agentkv list" in done.output


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("gemma2", [], f"{REPO}: models of type gemma2 are not written without torch"),
        ("llama", ["--quant", "none"], "torch is not installed"),
        ("llama", ["--backend", "mlx"], "torch is not installed"),
        ("llama", ["--recipe", "measured"], "torch is not installed"),
    ],
)
def test_a_pull_without_torch_says_what_to_install_before_it_downloads(
    kind: str, options: list[str], says: str, tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    with HubServer(REPO, tiny_hf_folder(kind, layers=1)) as hub:
        env = {**environment(hub, tmp_path), **without_torch(tmp_path)}
        done = subprocess.run([*COMMAND, "pull", REPO, *options], env=env, capture_output=True, text=True)
        assert done.returncode == 1
        assert says in done.stderr
        assert "torch is not installed: pip install torch==" in done.stderr
        assert hub.sent(WEIGHTS) == []


def test_a_pull_of_a_family_that_needs_no_torch_is_quantised_while_it_is_read(
    tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    with HubServer(REPO, tiny_hf_folder("llama", layers=1)) as hub:
        env = {**environment(hub, tmp_path), **without_torch(tmp_path)}
        pull = [*COMMAND, "pull", REPO, "--quant", "q6", "--recipe", "fixed"]
        done = subprocess.run(pull, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Pulled {REPO} (cpu, q6, fp32, fixed recipe, ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a b"], "is no name of a model on the hub"),
        (["owner/model@v1", "--revision", "v2"], "is no name of a model on the hub"),
        (["qwen3:9b"], "Did you mean"),
        (["owner/model", "--quant", "affine4"], "backend cpu has no quantisation 'affine4'"),
        (["owner/model", "--quant", "none", "--recipe", "fixed"], "only q4, q5, q6, q8 have a recipe (fixed)"),
        (["owner/model/model.gguf", "--recipe", "measured"], "have a recipe (measured), and this is file"),
    ],
)
def test_what_cannot_be_pulled_is_an_error_without_a_traceback(arguments: list[str], says: str) -> None:
    done = run("pull", *arguments)
    assert done.exit_code == 1
    assert says in done.output
    assert "Traceback" not in done.output


def test_a_short_name_is_pulled_opened_listed_and_removed_without_torch(tmp_path: Path) -> None:
    model = listed("qwen3:0.6b")
    assert model is not None
    write(tmp_path / "repo" / str(model.source.file), b"GGUF" + bytes(LARGE))
    write(tmp_path / "repo" / "another.gguf")
    with HubServer(model.source.repo, tmp_path / "repo") as hub:
        env = {**environment(hub, tmp_path), **without_torch(tmp_path), "HOME": str(tmp_path), "COLUMNS": "80"}

        def ran(*arguments: str) -> tuple[int, str]:
            done = subprocess.run(
                [*COMMAND, *arguments], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            return done.returncode, done.stdout + done.stderr

        missing = f"error: {model.name} is not here yet: agentkv pull {model.name} (609.8 MiB, licence: Apache 2.0)\n"
        assert ran("chat", model.name) == (1, missing)
        assert ran("serve", model.name) == (1, f"opening {model.name} ...\n{missing}")
        assert hub.asked == []
        for _ in range(2):  # the second finds it there
            status, said = ran("pull", model.name)
            assert (status, said) == (
                0,
                f"Pulled {model.name} (19.5 KiB). Talk to it with: agentkv chat {model.name}\n",
            )
        assert hub.sent(str(model.source.file)) == [""]
        assert not hub.sent("another.gguf")
        lines = ran("list")[1].splitlines()
        assert any(line.startswith(f" {model.name} ") and COMMIT[:8] in line for line in lines[:3])
        assert not any(line.startswith(f" {model.name} ") for line in lines[3:])
        assert ran("rm", "nano", "--yes") == (
            1,
            "error: nano is part of agentkv itself, so there is nothing to remove\n",
        )
        for other in catalogue():  # nothing is wrapped for whatever reads it
            rows = [line for line in lines if re.match(rf" {re.escape(other.name)} .* {re.escape(other.tools)}$", line)]
            assert len(rows) == (other.name != model.name)
        assert "is not here" not in ran("chat", model.name)[1]  # it is opened, and holds nothing
        assert ran("rm", model.name, "--yes") == (0, f"Removed {model.name} (19.5 KiB).\n")
        assert ran("chat", model.name) == (1, missing)


def test_a_chat_on_a_terminal_offers_the_download(tmp_path: Path) -> None:
    command = [*COMMAND, "chat", "smollm2:135m"]
    env = {**os.environ, "HOME": str(tmp_path), "AGENTKV_HOME": str(tmp_path), "HF_HOME": str(tmp_path)}
    person = pexpect.spawn(command[0], command[1:], env={**env, "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=PATIENCE)
    person.expect_exact("smollm2:135m is not here. Download 100.6 MiB (Apache 2.0)? [y/N]: ")
    person.sendline("")
    person.expect(pexpect.EOF)
    person.close()
    assert person.exitstatus == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("qwen", "OWNER/MODEL. Did you mean qwen3 or qwen2.5 or"),
        ("Qwen3-0.6B", "OWNER/MODEL. Did you mean qwen3:0.6b or"),
        ("mine", "OWNER/MODEL. Did you mean somebody/mine-GGUF"),
        ("zzzz", "OWNER/MODEL. `agentkv list --available` shows the short names"),
    ],
)
def test_a_name_without_an_owner_that_nobody_has_is_answered_with_near_ones(
    name: str, says: str, tmp_path: Path
) -> None:
    made("somebody/mine-GGUF", tmp_path / "agentkv", "a")
    env = {**os.environ, "HF_HOME": str(tmp_path), "AGENTKV_HOME": str(tmp_path / "agentkv"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*COMMAND, "pull", name], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {name}: not downloaded yet")
    assert says in done.stderr


def made(name: str, home: Path, key: str, when: float = 0.0, quant: Quantization = "file") -> None:
    """An export of the store, by its name."""
    options = Options(backend="cpu", quant=quant, dtype="fp32")
    entry = Entry(key=key, folder="model", options=options, names={name: when})
    (home / "models" / key / "model").mkdir(parents=True)
    entry.write(home / "models" / key)


def test_exports_of_a_file_that_changed_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path))
    made("/models/a.gguf", tmp_path, "one", 1e9)
    made("/models/a.gguf", tmp_path, "two", 1e9 + 1)
    made("/models/a.gguf", tmp_path, "other", 1e9, "q4")
    rows = [line.split("  ")[0:6] for line in run("list").output.splitlines() if "/models/a.gguf" in line]
    assert len(rows) == len({tuple(row) for row in rows}) == 3
    assert sum("made 2001-09-" in " ".join(row) for row in rows) == 2


def test_files_in_parts_come_together(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / "repo" / f"big-{number:05}-of-00002.gguf", b"GGUF part %d" % number)
    write(tmp_path / "repo" / "big-00001-of-00003.gguf")
    with HubServer(REPO, tmp_path / "repo") as hub:
        pull = [*COMMAND, "pull", f"{REPO}/big-00001-of-00002.gguf"]
        done = subprocess.run(pull, env=environment(hub, tmp_path), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert hub.sent("big-00002-of-00002.gguf") == [""]
        assert not hub.sent("big-00001-of-00003.gguf")


def test_what_other_programs_have_is_listed(user_home: Path) -> None:
    assert "No models of other programs were found." in run("list", "--found").output
    ollama_model(user_home, "qwen3:0.6b")
    ollama_manifest(user_home, "bad\x1b[31m:1", b"{")
    write(user_home / ".lmstudio/models/a/b/[bold]model.gguf")
    said = run("list", "--found").output
    for expected in ("ollama:qwen3:0.6b", "lmstudio:a/b/[bold]model.gguf", r"not usable: ollama:bad\x1b[31m:1: its"):
        assert expected in said
    assert "\x1b" not in said
    assert "agentkv pull" not in said
    assert "qwen3:4b (usual)" in run("list", "--available").output
