"""The `agentkv` command: what it prints, and how it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from agentkv_runtime.folder.draft_manifest import DraftManifest
from agentkv_runtime.folder.manifest import FeatureInfo, write_manifest
from agentkv_runtime.folder.model_folder import file_fingerprint
from typer.testing import CliRunner, Result

from agentkv.cli import app
from tests.models import write_tokenizer
from tests.runtime.folders import write_folder

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def test_help_and_version() -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert "export" in done.output
    assert "inspect" in done.output
    assert run().exit_code == 2
    done = run("--version")
    assert done.exit_code == 0
    assert done.output.startswith("agentkv ")


def test_inspect(tmp_path: Path) -> None:
    done = run("inspect", write_folder(tmp_path / "model", source="tiny [draft]", backend="mlx", dtype="bf16"))
    assert done.exit_code == 0, done.output
    for expected in ("tiny [draft]", "llama", "bf16", "2, 1 of them with a sliding window", "up to 64 rows"):
        assert expected in done.output
    lines = dict(line.strip().rsplit("  ", 1) for line in done.output.splitlines() if "K/V per token" in line)
    per_token = {name.strip().split()[-1]: value.strip() for name, value in lines.items()}
    assert per_token == {"fp32": "512 B", "fp16": "256 B", "bf16": "256 B"}
    assert all(line == line.rstrip() for line in done.output.splitlines())  # no terminal: one line for each fact
    assert any(re.fullmatch(r" fingerprint +sha256:[0-9a-f]{64}", line) for line in done.output.splitlines())


def test_inspect_of_a_folder_with_features_and_a_draft_head(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model", features=FeatureInfo(layers=(2, 16, 29), width=192))
    (path / "draft.pte").write_bytes(b"head")
    assert run("inspect", path).exit_code == 1  # a head that nothing describes
    draft = DraftManifest(
        quantization="8da4w", source="head", fingerprint=file_fingerprint(path / "draft.pte"), model_bytes=4,
        hidden_dim=64, feature_dim=192, draft_vocab_size=2, target_vocab_size=256, d2t=(3, 6), max_tokens=16,
        max_logits=4, n_kv_heads=2, head_dim=16, tokenizer_fingerprint=file_fingerprint(path / "tokenizer.json"),
    )  # fmt: skip
    write_manifest(draft, path / "draft.json")
    done = run("inspect", path)
    assert done.exit_code == 0, done.output
    for expected in ("192 floats per row, after layers 2, 16, 29", "eagle3, 8da4w, 2 of 256 tokens, 4 B"):
        assert expected in done.output


@pytest.mark.parametrize(("command", "more"), [("inspect", 0), ("export", 1), ("export-draft", 2)])
def test_a_wrong_folder_is_an_error_without_a_traceback(tmp_path: Path, command: str, more: int) -> None:
    done = run(command, tmp_path / "nowhere", *[tmp_path / "out"] * more)
    assert done.exit_code == 1
    assert "error:" in done.output
    assert "no such folder" in done.output
    assert "Traceback" not in done.output


def test_inspect_finds_damage_unless_told_not_to_look(tmp_path: Path) -> None:
    path = write_folder(tmp_path, b"0123456789")
    (path / "model.pte").write_bytes(b"012345678X")
    assert run("inspect", path).exit_code == 1
    assert run("inspect", path, "--no-verify").exit_code == 0


def test_bad_options_are_usage_errors(tmp_path: Path) -> None:
    assert run("export", tmp_path, tmp_path / "out", "--quant", "q3").exit_code == 2
    assert run("export", tmp_path, tmp_path / "out", "--max-tokens", "1").exit_code == 2
    assert run("export", tmp_path, tmp_path / "out", "--max-context", "0").exit_code == 2
    assert run("export", tmp_path, tmp_path / "out", "--backend", "metal").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--backend", "mlx", "--quant", "8da4w"],
            "backend mlx has no quantisation '8da4w': choose from none, file, affine8",
        ),
        (["--quant", "affine4"], "backend cpu has no quantisation 'affine4': choose from none, file, q4, q5"),
        (["--dtype", "bf16"], "backend cpu does not run in 'bf16': choose from fp32"),
    ],
)
def test_what_a_backend_does_not_have_is_refused(tmp_path: Path, options: list[str], message: str) -> None:
    done = run("export", tmp_path, tmp_path / "out", *options)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output


def test_export_without_torch_says_how_to_install_it(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    write_tokenizer(src)
    (src / "config.json").write_text('{"model_type": "bloom"}')
    (src / "model.safetensors").write_text("{}")
    # An installation that has everything but torch.
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    path = os.pathsep.join([str(tmp_path / "hide"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "agentkv.cli", "export", str(src), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "torch is not installed" in done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
