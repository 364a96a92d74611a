"""`agentkv serve`, as a person starts and stops it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import agentkv as kv
from agentkv import trace
from agentkv.cli import app
from tests.waiting import PATIENCE

NANO = str(kv.models.nano())
HI = {"model": "nano", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4, "temperature": 0}


@contextmanager
def served(
    *options: str, model: str | None = NANO, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, the address that it prints, and what it printed before."""
    command = [sys.executable, "-m", "agentkv.cli", "serve", *([model] if model else []), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stdout is not None
    printed: list[str] = []
    try:
        for line in process.stdout:
            printed.append(line)
            if line.startswith("serving"):
                break
        yield process, printed[-1].split(" at ")[1].split("/v1")[0], printed
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed until it ended by itself."""
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(PATIENCE) == 0
    return rest


COLLECTS = """
import gc
usual = gc.get_threshold()
from agentkv.serve import run
from agentkv_command import main

async def serves(*_):
    print(gc.get_threshold() == usual)

run.run = serves
main()
"""


def test_what_requests_leave_in_cycles_is_looked_for_as_often_as_usual() -> None:
    """One that fails leaves its body there: with few collections, a hundred bodies of 1 MB took 300 MB."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTS, "serve", NANO], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_names_of_the_machine_and_the_format_of_calls_can_be_given() -> None:
    with served("--allow-host", "desk.local", "--call-format", "hermes") as (_, url, _):
        facts = httpx.get(f"{url}/v1/tokens", headers={"host": "desk.local:8080"}, timeout=PATIENCE)
        assert (facts.status_code, facts.json()["call_format"]) == (200, "hermes")
        assert "--allow-host" in httpx.get(f"{url}/v1/tokens", headers={"host": "evil.example"}, timeout=PATIENCE).text


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(told: signal.Signals) -> None:
    with served() as (process, url, printed):
        assert printed[0] == f"opening {NANO} ...\n"
        assert "serving nano" in printed[-1]
        answer = httpx.post(f"{url}/v1/chat/completions", json=HI, timeout=PATIENCE)
        assert answer.status_code == 200
        process.send_signal(told)
        assert "stopped" in ended(process)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health")


def test_what_runs_is_let_go_on_and_then_told() -> None:
    with served("--drain-seconds", "0.2") as (process, url, _):
        endless = {**HI, "max_tokens": 4000, "stream": True, "logit_bias": {"0": -100, "1": -100, "2": -100}}
        endless["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=endless, timeout=PATIENCE) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert any("stopping" in line for line in rest) or rest[-2:] == ["data: [DONE]", ""]
        assert "stopping: 1 requests are at work" in ended(process)


def test_several_models_are_opened_on_use_and_end_together(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[small]\nmodel = "nano"\ncapacity = 512\n[keys]\nFOR_SMALL = ["small"]\n')
    options = ("--models", str(file), "--capacity", "256", "--max-memory", "1GiB", "--idle", "600")
    with served("--api-key", "k", *options, model="large=nano", FOR_SMALL="s") as (process, url, printed):
        assert printed[-1].startswith("serving small, large at ")
        with httpx.Client(base_url=url, headers={"x-api-key": "k"}, timeout=PATIENCE) as http:
            capacities = {
                name: http.get("/v1/tokens", params={"model": name}).json()["capacity"] for name in ("small", "large")
            }
            assert capacities == {"small": 512, "large": 256}
            assert all(each["open"] for each in http.get("/v1/models").json()["data"])
            listed = http.get("/v1/models", headers={"x-api-key": "s"}).json()["data"]
            assert [each["id"] for each in listed] == ["small"]
            body = {**HI, "max_tokens": 40, "stream": True}
            with (
                http.stream("POST", "/v1/chat/completions", json={**body, "model": "small"}) as one,
                http.stream("POST", "/v1/chat/completions", json={**body, "model": "large"}) as other,
            ):
                lines = [one.iter_lines(), other.iter_lines()]
                assert all(next(each).startswith("data: ") for each in lines)
                process.send_signal(signal.SIGTERM)
                assert [list(each)[-2] for each in lines] == ["data: [DONE]"] * 2
        assert "stopped" in ended(process)


def test_keys_come_from_the_environment() -> None:
    with served(AGENTKV_API_KEY="k") as (_, url, printed):
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
        assert "k" not in "".join(printed).replace("nano", "").split()


def test_saved_branches_are_there_from_the_start(tmp_path: Path) -> None:
    import anyio

    system = {"role": "system", "content": "You are Nano, a desk agent. " * 8}

    async def save() -> int:
        async with kv.Context.open(NANO) as ctx:
            branch = await ctx.branch([system])
            await branch.save(tmp_path / "system.kv", shareable=True)
            return len(branch)

    tokens = anyio.run(save)
    with served("--warm", str(tmp_path / "system.kv")) as (_, url, printed):
        assert f"loaded 1 branches of {tokens} tokens" in "".join(printed)
        body = {**HI, "messages": [system, *HI["messages"]]}  # type: ignore[misc]
        usage = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= tokens - 1


def test_a_model_that_is_called_by_name_drafts_with_its_head_and_a_corpus(tmp_path: Path) -> None:
    with served("--speculative", "suffix+eagle", "--corpus", str(tmp_path), model="nano") as (process, url, _):
        answer = httpx.post(f"{url}/v1/chat/completions", json={**HI, "max_tokens": 32}, timeout=PATIENCE)
        assert answer.status_code == 200
        metrics = httpx.get(f"{url}/metrics", timeout=PATIENCE).text
        process.send_signal(signal.SIGTERM)
        ended(process)
    assert "agentkv_drafted" in metrics
    assert len(list(tmp_path.glob("*.corpus"))) == 1


def test_prompts_begin_with_what_an_earlier_server_kept(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You are Nano, a desk agent. " * 40}
    said = []
    for question in ("Who are you?", "What can you do?", "Who are you?"):
        with served("--prefix-cache", str(tmp_path), "--prefix-cache-bytes", "100000000") as (_, url, _):
            messages = [system, {"role": "user", "content": question}]
            body = {"model": "nano", "messages": messages, "max_tokens": 16, "temperature": 0}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
            said.append((answer["choices"][0]["message"]["content"], answer["usage"]))
            written = len(said) != 2
            while not written:
                text = httpx.get(f"{url}/metrics", timeout=PATIENCE).text
                written = "agentkv_prefix_cache_written_total 1.0" in text
    assert said[0][0] == said[2][0]
    assert "prompt_tokens_details" not in said[0][1] or said[0][1]["prompt_tokens_details"]["cached_tokens"] == 0
    assert said[2][1]["prompt_tokens_details"]["cached_tokens"] >= 256


def test_a_trace_has_what_was_served(tmp_path: Path) -> None:
    import anyio

    path = tmp_path / "served.trace"
    with served("--trace", str(path)) as (process, url, _):
        answer = httpx.post(f"{url}/v1/chat/completions", json=HI, timeout=PATIENCE).json()
        process.send_signal(signal.SIGTERM)
        ended(process)
    replayed = anyio.run(trace.replay, path)
    assert replayed.same
    assert replayed.tokens >= answer["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trace", "/no/such/folder/x.trace"], "cannot be written"),
        (["--host", "0.0.0.0"], "AGENTKV_API_KEY"),
        (["--api-key", ""], "empty"),
        (["--speculative", "draft"], "--draft"),
        (["--speculative", "prompt", "--corpus", "folder"], "--speculative suffix"),
        (["--speculative", "suffix", "--corpus", __file__], "give the path of a folder"),
        (["--speculative", "mtp"], "draft with Suffix"),
        (["--kv-dtype", "fp7"], "fp7"),
        (["--prefix-cache", __file__], "give the path of a folder"),
        (["--prefix-cache", "here", "--quantize-after", "64"], "leave one of the two out"),
        (["--prefix-cache", "here", "--prefix-cache-bytes", "5"], "prefix_cache_bytes"),
        (["--warm", "no-such-file"], "no-such-file"),
        (["--host", "no.such.host.invalid", "--insecure"], "cannot listen"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["serve", NANO, "--port", "0", *options], env={"COLUMNS": "200"})
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "agentkv.cli", "serve", NANO, "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}: {os.strerror(errno.EADDRINUSE)}; pass another" in done.stderr
