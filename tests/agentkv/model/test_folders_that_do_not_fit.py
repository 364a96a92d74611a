"""Hugging Face folders whose files do not fit each other: opening, exporting and chatting name the file and the remedy,
before torch is loaded."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.hf.config_check import _layers
from typer.testing import CliRunner

import agentkv as kv
from agentkv.cli import app

NANO = Path(__file__).parents[3] / "examples" / "nano" / "weights"
Damage = Callable[[Path], object]


def said(**settings: Any) -> Damage:
    """Other settings in the config; None removes one."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | settings
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return change


def without(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def instead(name: str, *others: str) -> Damage:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        for other in others:
            (folder / other).touch()

    return change


ROWS: list[tuple[str, Damage, str]] = [
    ("fewer layers", said(num_hidden_layers=3), r"config.json: num_hidden_layers is 3, .* 4 layers.*write 4 there"),
    ("no layers", said(num_hidden_layers=0), r"config.json: num_hidden_layers is 0, .* 4 layers.*write 4 there"),
    ("less than no layers", said(num_hidden_layers=-1), r"num_hidden_layers is -1, .* 4 layers.*write 4 there"),
    ("more layers", said(num_hidden_layers=6), r"config.json: num_hidden_layers is 6, .* 4 layers.*Download the whole"),
    ("misspelt", said(model_type="lama"), r"config.json: model_type is 'lama', .* type 'llama'. Write 'llama' there"),
    ("no type", said(model_type=None), r"config.json: names no model_type.*Download the whole model"),
    (
        "a wider layer",
        said(intermediate_size=1408),
        r"gate_proj.* is \[704, 256\], and by its config \[1408, 256\]",
    ),
    ("no JSON", lambda folder: (folder / "config.json").write_text("{"), r"config.json: cannot be read"),
    ("no config", without("config.json"), r"no config.json, which says what model model.safetensors is of. Download"),
    ("no tokenizer", without("tokenizer.json"), r"no tokenizer.json.*Download the whole model, with its tokenizer"),
    (
        "an older tokenizer",
        instead("tokenizer.json", "tokenizer.model"),
        r"r.model is not read.*save_pretrained",
    ),
    ("no weights", without("model.safetensors"), r"holds no weights .*Download the whole model"),
    ("files for llama.cpp", instead("model.safetensors", "a.gguf"), r"with a GGUF file: a.gguf. Give the file, as /"),
    (
        "files alone",
        lambda folder: (
            without("model.safetensors", "config.json")(folder),
            [
                (folder / f"{name}.gguf").touch()
                for name in ("b", "a", "mmproj", "c-00001-of-00002", "c-00002-of-00002")
            ],
        ),
        r"with 3 GGUF files: a.gguf, b.gguf, c-00001-of-00002.gguf. Give the file, as .*a.gguf",
    ),
]


@pytest.fixture(params=ROWS, ids=[row[0] for row in ROWS])
def damaged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A damaged folder, and what is to be said of it."""
    _, damage, why = request.param
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "home"))
    folder = Path(shutil.copytree(NANO, tmp_path / "model"))
    damage(folder)
    return folder, why


def test_a_folder_that_does_not_fit_is_not_opened(damaged: tuple[Path, str]) -> None:
    folder, why = damaged
    with pytest.raises(kv.ModelError, match=re.compile(why)):
        kv.Context.open(folder, capacity=64).sync().__enter__()


@pytest.mark.parametrize("command", [["export", "MODEL", "OUT"], ["chat", "MODEL"]], ids=["export", "chat"])
def test_commands_say_the_same(damaged: tuple[Path, str], command: list[str], tmp_path: Path) -> None:
    folder, why = damaged
    places = {"MODEL": str(folder), "OUT": str(tmp_path / "out")}
    done = CliRunner().invoke(app, [places.get(word, word) for word in command], input="hi\n")
    assert done.exit_code == 1
    assert re.search(why, done.output)
    assert not (tmp_path / "out").exists()
    assert "torch" not in done.output


def test_layers_of_another_make_behind_the_last_are_no_fault(tmp_path: Path) -> None:
    """As those that predict several tokens at a time."""
    names = [f"model.layers.{i}.mlp.weight" for i in range(3)]
    assert _layers(names, 3) == _layers([*names, "model.layers.3.eh_proj.weight", "lm_head.weight"], 3) == 3
    assert _layers([*names, "model.layers.3.mlp.weight"], 3) == 4
    assert _layers(["encoder.weight"], 3) == 0
