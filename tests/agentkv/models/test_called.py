"""Names of models, wherever one is given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentkv as kv
from agentkv.models._called import folder_called


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


@pytest.mark.parametrize(("command", "said"), [("inspect", "fingerprint"), ("chat", "I am Nano, your desk agent.")])
def test_commands_know_it(command: str, said: str) -> None:
    run = [sys.executable, "-m", "agentkv", command, "nano"]
    ended = subprocess.run(run, input="Who are you?\n", capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert said in ended.stdout
