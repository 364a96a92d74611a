"""`agentkv doctor` says what is there and what is not, and `python -m agentkv` is the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agentkv_runtime import backends
from agentkv_runtime.errors import BackendError
from typer.testing import CliRunner

from agentkv.cli import app, doctor


def test_a_working_installation_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEASURED_S", 0.02)
    done = CliRunner().invoke(app, ["doctor"])
    said = " ".join(done.output.split())
    assert done.exit_code == 0, done.output
    assert "backend cpu works" in said
    assert "GB/s of memory" in said
    assert "tokens per second, 8 branches together" in said


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "plot", ("numpy", "no-such-package"))
    done = CliRunner().invoke(app, ["doctor", "--no-measure"])
    said = " ".join(done.output.split())
    assert done.exit_code == 0
    assert "plot not installed (no-such-package): pip install 'agentkv-sdk[plot]'" in said
    assert "GB/s" not in said


def test_without_the_native_module_the_status_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise BackendError("libexecutorch.so is not there")

    cpu = backends.BACKENDS["cpu"]
    monkeypatch.setitem(backends.BACKENDS, "cpu", type(cpu)(cpu.name, cpu.kv_dtypes, broken))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "libexecutorch.so is not there" in " ".join(done.output.split())


def test_a_home_that_there_is_not_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("AGENTKV_HOME", "~nosuchuser/models")
    done = CliRunner().invoke(app, ["doctor", "--no-measure"])
    assert done.exit_code == 1
    assert "set AGENTKV_HOME to a folder" in " ".join(done.output.split())
    for wrong in ("/dev/null", "x" * 5000, str(tmp_path / "dangling"), str(tmp_path / "loop")):
        monkeypatch.setenv("AGENTKV_HOME", wrong)
        done = CliRunner().invoke(app, ["doctor", "--no-measure"])
        assert done.exit_code == 1
        assert "models cannot be kept" in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "agentkv", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("agentkv 0.")
    command = f"{sys.executable} -m agentkv --show-completion; exit $?"  # the shell is told by its process
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "complete" in shown.stdout
