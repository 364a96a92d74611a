"""Names of models, wherever one is given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentkv as kv
from agentkv.models._resolve import folder_called
from tests.runtime.store.stores import hub_file, ollama_model
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def elsewhere(user_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(user_home)
    return user_home


def test_nano_is_a_name() -> None:
    assert folder_called(Path("nano")) == kv.models.nano()
    with kv.Context.open("nano", capacity=64, threads=1).sync() as ctx:
        assert ctx.model_info.path == kv.models.nano()


def test_a_draft_may_be_called_by_name() -> None:
    with kv.Context.open("nano", capacity=256, threads=1, speculative=kv.spec.DraftModel("nano")).sync() as ctx:
        ctx.branch("Hello").generate(max_tokens=8)
        assert ctx.stats.drafted


def test_a_folder_of_that_name_is_the_users(elsewhere: Path) -> None:
    shutil.copytree(kv.models.nano(), elsewhere / "nano")
    with kv.Context.open("nano", capacity=64, threads=1).sync() as ctx:
        assert ctx.model_info.path == Path("nano")


def test_other_names_are_refused_with_what_there_is() -> None:
    with pytest.raises(kv.ModelError, match=r"agentkv pull OWNER/MODEL.*nano"):
        folder_called(Path("mano"))
    with pytest.raises(kv.ModelError, match="agentkv pull owner/model"):
        folder_called(Path("owner/model"))
    assert folder_called(Path("/no/where")) == Path("/no/where")


def test_a_short_name_that_is_not_here_says_how_to_get_it() -> None:
    with pytest.raises(kv.ModelError, match=r"qwen3:0\.6b is not here yet: agentkv pull qwen3:0\.6b \(609\.8 MiB"):
        folder_called(Path("qwen3:0.6b"))
    with pytest.raises(kv.ModelError, match=r"Did you mean qwen3:8b .*agentkv list --available"):
        folder_called(Path("qwen3:9b"))
    with pytest.raises(kv.ModelError, match=r"agentkv list --found"), kv.Context.open("ollama:qwen3").sync():
        pass


def test_what_lies_there_comes_before_every_name(elsewhere: Path) -> None:
    ollama_model(elsewhere, "nano:latest")
    hub_file(elsewhere, "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf")
    for name in ("qwen3:0.6b", "ollama:nano"):
        assert folder_called(Path(name)).is_absolute()
        shutil.copytree(kv.models.nano(), elsewhere / name)
        with kv.Context.open(name, capacity=64, threads=1).sync() as ctx:
            assert ctx.model_info.path == Path(name)


@pytest.mark.parametrize(("command", "said"), [("inspect", "fingerprint"), ("chat", "I am Nano, your desk agent.")])
def test_commands_know_it(command: str, said: str) -> None:
    run = [sys.executable, "-m", "agentkv", command, "nano"]
    ended = subprocess.run(run, input="Who are you?\n", capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert said in ended.stdout
