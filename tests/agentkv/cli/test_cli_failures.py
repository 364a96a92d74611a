"""What stops a command: paths, disks, hostile folders and signals. One line, a status, and nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import typer
from agentkv_runtime.errors import StoreError
from typer.testing import CliRunner, Result

from agentkv import models
from agentkv._console.console import remembered_interrupts
from agentkv._console.progress import displayed
from agentkv.cli import app
from tests.agentkv.trace.synthetic import write_synthetic
from tests.conftest import FolderFactory
from tests.rows import in_turn
from tests.runtime.draft_heads import head_weights, write_head
from tests.runtime.folders import write_folder
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def refused(*arguments: object) -> str:
    """The line that a command ends with."""
    done = run(*arguments)
    assert done.exit_code == 1, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit)
    lines = [line for line in done.output.splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture(scope="module")
def src(tiny_hf_folder: FolderFactory) -> Path:
    return tiny_hf_folder("llama", layers=1)


@pytest.fixture(params=["export", "export-draft"])
def exporting(request: pytest.FixtureRequest, src: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """A command that lacks its target."""
    if request.param == "export":
        return ["export", src]
    head = write_head(tmp_path_factory.mktemp("head") / "head", head_weights())
    return ["export-draft", head, src]


def test_targets_that_cannot_be_written_are_refused_before_anything_is_loaded(
    exporting: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = tree(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # what comes after these checks cannot go on
    assert "Not a directory" in refused(*exporting, tmp_path / "file" / "a" / "out")
    assert "left as it is" in refused(*exporting, tmp_path / "file")
    assert "/proc" in refused(*exporting, "/proc/agentkv/out")
    assert "loop" in refused(*exporting, tmp_path / "loop" / "out")
    assert "File name too long" in refused(*exporting, tmp_path / ("x" * 300))
    assert tree(tmp_path) == before


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read and write everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_folders_without_permission(src: Path) -> None:
    run("inspect", "nowhere")  # imports what the command needs
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        readable = shutil.copytree(src, root / "src")
        hidden = write_folder(root / "locked" / "model").parent
        hidden.chmod(0)
        root.chmod(0o555)
        with as_nobody():
            found = [
                refused("export", readable, root / "out"),
                refused("export", readable, hidden / "out"),
                refused("export", hidden / "src", "/tmp/out"),
                refused("inspect", hidden / "model"),
                refused("bench", "spec", hidden / "model"),
            ]
        root.chmod(0o755)
        hidden.chmod(0o755)
    assert all("Permission denied" in line for line in found), found


def test_a_link_is_followed(src: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "real")
    (tmp_path / "real" / "draft.pte").write_bytes(b"head")
    (tmp_path / "real" / "draft.json").write_bytes((ROOT / "agentkv/models/nano/draft.json").read_bytes())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "later" / "model")
    for name in ("link", "dangling"):
        done = run("export", src, tmp_path / name, "--max-tokens", 8)
        assert done.exit_code == 0, done.output
        assert ("draft head in the folder stays" in done.output) == (name == "link")
        assert (tmp_path / name).is_symlink()
        assert run("inspect", tmp_path / name).exit_code == 0
    assert (tmp_path / "real" / "model.pte").is_file()
    assert (tmp_path / "later" / "model" / "model.pte").is_file()


@pytest.mark.parametrize("option", ["--max-tokens", "--max-logits"])
def test_bounds_that_no_program_should_have(option: str, exporting: list[object], tmp_path: Path) -> None:
    for value in (8193, 10**30):
        assert f"{value}, but it must be 2 to 8192" in refused(*exporting, tmp_path / "out", option, value)
    assert tree(tmp_path) == []


HOSTILE = "tiny \x1b[31mred\x1b[0m \x07\r\n\u202e[bold]:smile: \\[/]"


def test_what_a_manifest_says_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model", source=HOSTILE, model_type=HOSTILE, exported_with={HOSTILE: HOSTILE})
    done = run("inspect", path)
    assert done.exit_code == 0, done.output
    assert not set(done.output) & set("\x1b\x07\r\u202e")
    assert done.output.count(r"tiny \x1b[31mred\x1b[0m \x07\r\n\u202e[bold]:smile: \[/]") == 4
    (path / "agentkv.json").write_text(json.dumps({"format_version": 1, "exported_with": {HOSTILE: 1}}))
    assert r"\x1b" in refused("inspect", path) or "source" in refused("inspect", path)
    path = write_folder(tmp_path / HOSTILE.replace("/", ""), source="tiny")
    os.truncate(path / "model.pte", 1)
    line = refused("inspect", path)
    assert not set(line) & set("\x1b\x07\r\u202e")


COUNTS = ("n_layers", "n_kv_heads", "head_dim", "vocab_size", "max_tokens", "max_logits", "model_bytes")
ABSURD = [
    *((name, value) for name in COUNTS for value in ("1" + 30 * "0", "-1" + 30 * "0", "0", "1e400", "NaN")),
    ("vocab_size", str(2**62)),
    ("n_layers", 5000 * "9"),
    ("windows", f"[{2**70}, 0]"),
    ("windows", "[0]"),
    ("windows", "[-1, -1]"),
    ("max_positions", str(10**30)),
    ("features", f'{{"layers": [{10**30}], "width": {10**30}}}'),
    ("exported_with", '{"torch": {"a": 1}}'),
    ("format_version", str(10**30)),
]


@pytest.mark.parametrize(("name", "value"), ABSURD, ids=[f"{name}={value:.24}" for name, value in ABSURD])
def test_absurd_numbers_in_a_manifest(name: str, value: str, tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model")
    facts = json.loads((path / "agentkv.json").read_text())
    (path / "agentkv.json").write_text(json.dumps({**facts, name: "HERE"}).replace('"HERE"', value))
    assert "agentkv.json" in refused("inspect", path)


COMPANIONS = ["tokenizer_config.json", "chat_template.jinja", "generation_config.json"]


@pytest.mark.parametrize("name", ["agentkv.json", "draft.json", "model.pte", "tokenizer.json", *COMPANIONS])
def test_what_lies_in_a_folder_in_a_files_place(name: str, tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model")
    (path / "draft.pte").write_bytes(b"head")
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    assert name in refused("inspect", path)
    (path / name).unlink()
    (path / name).mkdir()
    assert name in refused("inspect", path)
    (path / name).rmdir()
    (path / name).symlink_to("/dev/zero")
    assert name in refused("inspect", path)
    (path / name).unlink()
    if name != "model.pte":
        for content in (b'{"a": "\xe4"}', b"{" * 100_000, b'{"a":' * 100_000):
            if name == "chat_template.jinja" and b"\xe4" not in content:
                continue
            (path / name).write_bytes(content)
            assert name in refused("inspect", path)
        with open(path / name, "wb") as file:
            file.truncate(300 << 20)
        assert name in refused("inspect", path)


def test_a_source_that_holds_something_else(src: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", *COMPANIONS):
        copy = shutil.copytree(src, tmp_path / name)
        (copy / name).unlink(missing_ok=True)
        os.mkfifo(copy / name)
        assert name in refused("export", copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()


SAYS_WHEN_IT_IMPORTS = """
import sys
from agentkv_command import main

class Begins:
    def find_spec(self, name, *_):
        if name == "{}":
            print("begins", flush=True)

sys.meta_path.insert(0, Begins())
main()
"""
SAYS_WHEN_IT_QUANTISES = """
import time
from agentkv_command import main
from agentkv_runtime.export.direct import hf_folder
from tests.waiting import TICK

def quantize_rows(*_):
    print("begins", flush=True)
    while True:
        time.sleep(TICK)  # again and again: Python hears of a signal that comes just before a sleep only behind it

hf_folder.quantize_rows = quantize_rows
main()
"""
SAYS_WHEN_IT_GENERATES = """
from itertools import count
from agentkv import Branch
from agentkv_command import main

real, calls = Branch.generate, count()

def generate(*arguments, **options):
    if next(calls) == 10:
        print("begins", flush=True)
    return real(*arguments, **options)

Branch.generate = generate
main()
"""


Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def command() -> Iterator[Command]:
    """`command(script, *arguments)` in a process of its own, which has come to the moment that the script speaks of."""
    with ExitStack() as ended:

        def begin(script: str, *arguments: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", script, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            ended.enter_context(process)
            ended.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            return process

        yield begin


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk on which no file grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up(src: Path, tmp_path: Path) -> None:
    assert run("export", src, tmp_path / "model", "--max-tokens", 8).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    with files_of_at_most((tmp_path / "model" / "model.pte").stat().st_size - 10_000):
        assert "File too large" in refused("export", src, tmp_path / "model")
    assert {path: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


FEW = "eval tools nano --n 1 --categories no_tool --max-tokens 4 --threads 1 --capacity 8192"


@pytest.mark.parametrize("writes", ["view run.trace --no-open --out", f"{FEW} --json", f"{FEW} --page"])
def test_a_file_that_a_full_disk_has_no_room_for_stays_as_it_was(
    writes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_synthetic(tmp_path / "run.trace", steps=20)
    target = tmp_path / "target"
    assert run(*writes.split(), target).exit_code == 0  # and all is imported: Python would cache cut bytecode
    before = target.read_bytes()
    with files_of_at_most(100):
        done = run(*writes.split(), target)
    assert (done.exit_code, done.stderr) == (1, f"error: {target}: File too large\n")
    assert target.read_bytes() == before
    assert tree(tmp_path) == ["run.trace", "target"]


def test_what_a_command_writes_goes_through_a_pipe() -> None:
    script = "import sys; from agentkv.cli import app; app()"
    arguments = [*FEW.split(), "--json", "/dev/stderr"]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0
    assert json.loads(done.stderr)["cases"]


@pytest.mark.parametrize(
    ("missing", "command", "advice"),
    [
        ("starlette", "serve nano", "pip install 'agentkv-sdk[serve]'"),
        ("uvicorn", "eval tools nano --serve", "pip install 'agentkv-sdk[serve]'"),
        ("prometheus_client", "eval tools nano --serve", "pip install 'agentkv-sdk[serve]'"),
        ("openai", "eval tools nano --server http://127.0.0.1:9/v1", "pip install 'agentkv-sdk[serve]'"),
        ("mcp", "mcp nano", "pip install 'agentkv-sdk[mcp]'"),
        ("rich", "list", "pip install agentkv-sdk"),
    ],
)
def test_a_command_says_how_to_install_what_it_lacks(missing: str, command: str, advice: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from agentkv_command import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *command.split()], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(f" is not installed: {advice}")


def test_output_that_has_no_room() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from agentkv_command import main; main()", "inspect", str(models.nano())],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


@pytest.mark.parametrize(
    ("importing", "told"),
    in_turn(["agentkv", "pydantic", "torch", "executorch.exir"], [(signal.SIGINT, 130), (signal.SIGTERM, 143)]),
)
def test_signals(command: Command, importing: str, told: tuple[signal.Signals, int], src: Path, tmp_path: Path) -> None:
    by_torch = ("--quant", "8da4w")
    process = command(SAYS_WHEN_IT_IMPORTS.format(importing), "export", src, tmp_path / "a" / "out", *by_torch)
    process.send_signal(told[0])
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == told[1], errors
    assert "Traceback" not in errors, errors
    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_signals_to_an_export_without_torch(
    command: Command, sent: signal.Signals, status: int, src: Path, tmp_path: Path
) -> None:
    process = command(SAYS_WHEN_IT_QUANTISES, "export", src, tmp_path / "a" / "out")
    process.send_signal(sent)
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == status, errors
    assert "Traceback" not in errors, errors
    if sent is signal.SIGKILL:  # nobody takes what is left for a model, and the next export sweeps it
        assert "not a model folder" in refused("inspect", next((tmp_path / "a").iterdir()))
        assert run("export", src, tmp_path / "a" / "out").exit_code == 0
        assert tree(tmp_path / "a")[0] == "out"
    else:
        assert tree(tmp_path) == []


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_to_a_benchmark(
    command: Command, sent: signal.Signals, status: int, tiny_exported_folder: FolderFactory
) -> None:
    process = command(SAYS_WHEN_IT_GENERATES, "bench", "spec", tiny_exported_folder("llama"), "--repeat", 1000)
    process.send_signal(sent)
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == status, errors
    assert "Traceback" not in errors, errors


def test_an_interrupt_that_a_library_swallows_is_raised_again() -> None:
    with remembered_interrupts() as check:
        check()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_a_library_makes_an_error_of_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise StoreError("the download failed: release unlocked lock") from None

    with pytest.raises(typer.Exit) as left, displayed("stopped"):
        interrupted()
    assert left.value.exit_code == 130
    assert capsys.readouterr().err.strip() == "stopped"


class Interrupted:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_finalizer_is_raised_again_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    hook = sys.unraisablehook
    with remembered_interrupts() as check:
        Interrupted()
        with pytest.raises(KeyboardInterrupt):
            check()
    assert capsys.readouterr().err == ""
    assert sys.unraisablehook is hook


def test_a_command_that_ignores_interrupts_can_be_terminated(command: Command, src: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as shells do for commands in the background
    try:
        process = command(SAYS_WHEN_IT_IMPORTS.format("agentkv"), "export", src, tmp_path / "out")
    finally:
        signal.signal(signal.SIGINT, before)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 143, errors
    assert tree(tmp_path) == []
