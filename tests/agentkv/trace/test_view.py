"""The page of a trace holds what was recorded, and nothing that a trace says is taken for markup."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import agentkv as kv
from agentkv import trace
from agentkv.cli import app
from agentkv.trace.file import TraceWriter
from agentkv.trace.records import Stepped
from agentkv.trace.view.page import page_of
from tests.agentkv.agents.conftest import TWO_CALLS, OpenDesk, desk_agent
from tests.agentkv.conftest import OpenContext
from tests.waiting import PATIENCE

from .conftest import only, records_of
from .synthetic import write_synthetic

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \u202e\u0000 ${1} <!--"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_TYPES = {"Float64Array": "f8", "Float32Array": "f4", "Int32Array": "i4", "Uint8Array": "u1"}


def held_by(page: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts and the columns that a page carries."""
    packed = [
        gzip.decompress(base64.b64decode(found))
        for found in re.findall(r'<script type="application/octet-stream" id="\w+-data">([^<]*)</script>', page)
    ]
    facts = json.loads(packed[0])
    columns = {
        name: np.frombuffer(packed[1], _TYPES[kind], length, at) for name, (kind, at, length) in facts["arrays"].items()
    }
    return facts, columns


@pytest.mark.anyio
async def test_branches_steps_turns_and_texts_are_there(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    agent = desk_agent("weather")
    async with open_desk() as ctx, trace.record(ctx, path) as recording:
        trunk = await agent.trunk(ctx)
        kids = await trunk.fork(2)
        run = await agent.run(kids[0], TWO_CALLS)
        await kids[1].generate(max_tokens=5)
        recording.note("here", kids[1])
        text = trunk.text
        steps = ctx.stats
    facts, columns = held_by(page_of(path))
    assert [branch[0] for branch in facts["branches"]][-3:] == [trunk.id, *(kid.id for kid in kids)]
    assert len(columns["step_at"]) == steps.steps
    assert columns["step_prefill"].sum() == steps.prefilled
    assert facts["complete"]
    assert [turn["branch"] for turn in facts["turns"]] == [kids[0].id]
    assert sorted(call["content"] for call in facts["calls"]) == sorted(call.content for call in run.calls)
    assert [note[1:] for note in facts["notes"]] == [[kids[1].id, "note", "here"]]
    row = columns["log_count"].tolist().index(len(trunk))
    tokens = columns["tokens"][columns["log_first"][row] :][: columns["log_count"][row]]
    ends = [*columns["piece_first"][1:].tolist(), len(columns["pieces"])]
    spelled = {
        int(token): columns["pieces"][begin:end].tobytes()
        for token, begin, end in zip(columns["piece_token"], columns["piece_first"], ends, strict=True)
    }
    assert b"".join(spelled[int(token)] for token in tokens).decode() == text


@pytest.mark.anyio
async def test_a_run_without_steps_and_one_that_was_cut_have_pages(open_context: OpenContext, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_context() as ctx, trace.record(ctx, path):
        pass
    facts, columns = held_by(page_of(path))
    assert facts["complete"]
    assert len(columns["step_at"]) == 0
    write_synthetic(path, 300)
    whole = len(held_by(page_of(path))[1]["step_at"])
    path.write_bytes(path.read_bytes()[:-1])
    facts, columns = held_by(page_of(path))
    assert not facts["complete"]
    assert whole == 300


@pytest.mark.anyio
async def test_nothing_that_was_said_is_markup(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_desk() as ctx, trace.record(ctx, path) as recording:
        branch = await ctx.branch([{"role": "user", "content": HOSTILE}])
        recording.note(HOSTILE, branch)
    page = page_of(path)
    assert "alert(1)" not in page
    assert page.count("</script>") == 3
    facts, _ = held_by(page)
    assert facts["notes"][0][3] == HOSTILE
    assert "innerHTML" not in page
    assert not re.search(r'(?:src|href)\s*=\s*["\']?(?:https?:)?//', page)


def test_steps_that_repeat_are_told_once(tmp_path: Path) -> None:
    path = tmp_path / "long.trace"
    write_synthetic(path, 2000)
    seen: list[int] = []
    page_of(path, lambda part: seen.append(round(100 * part)))
    assert seen == sorted(seen)
    assert seen[-1] == 100
    _, columns = held_by(page_of(path))
    assert len(columns["step_at"]) == 2000 == len(only(Stepped, records_of(path)))
    assert len(columns["share_first"]) < 1500


def test_the_command_writes_a_page_or_perfettos_format(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    write_synthetic(path, 50)
    done = CliRunner().invoke(app, ["view", str(path), "--no-open"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.trace.html").read_text().startswith("<!doctype html>")
    assert CliRunner().invoke(app, ["view", str(path), "--perfetto", "-o", str(tmp_path / "p")]).exit_code == 0
    assert (tmp_path / "p").stat().st_size > 1000
    (tmp_path / "b.trace").write_text("no trace")
    for wrong in (str(tmp_path / "b.trace"), "", "/"):
        done = CliRunner().invoke(app, ["view", wrong])
        assert (done.exit_code, type(done.exception)) == (1, SystemExit)
        assert done.output.startswith("error: ")


def test_a_damaged_trace_has_no_page(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    TraceWriter(path).close()
    with pytest.raises(kv.TraceError):
        page_of(path)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("steps", [0, 3000])
def test_a_browser_runs_it_without_an_error(tmp_path: Path, steps: int) -> None:
    path, page = tmp_path / "a.trace", tmp_path / "a.html"
    write_synthetic(path, steps)
    page.write_text(page_of(path))
    assert CHROMIUM is not None
    shown = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    assert 'data-ready="true"' in shown
    assert 'data-errors="0"' in shown
    assert f"{steps:,} steps" in shown
    assert "alert(" not in shown
