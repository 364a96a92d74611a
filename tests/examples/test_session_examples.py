"""The examples of the middle tier run on the packaged model and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SESSIONS = Path(__file__).parents[2] / "examples" / "sessions"


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(SESSIONS / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_a_conversation_over_a_decode_session(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("decode_loop", capsys)
    assert "> Who are you?\nI am Nano, your desk agent." in out
    assert "tokens in the cache" in out


def test_samples_share_a_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("samples", capsys).splitlines()
    assert sum("no tool for that" in line for line in lines) >= 2
    tokens, forwards = (int(lines[-2].split()[i]) for i in (0, 3))
    assert tokens > 3 * forwards  # six samples, one forward per step
    prompt = int(lines[-2].split()[-2])
    assert lines[-1].endswith(f": {prompt} cells")


def test_a_draft_tree_changes_the_forwards_and_not_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    last = printed("draft_tree", capsys).splitlines()[-1]
    assert last.endswith("the same tokens")
    plain, drafted = (int(part.split()[0]) for part in last.split(": ")[1].split(", "))
    assert 2 * drafted <= plain
