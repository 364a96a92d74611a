"""Every causal language model of transformers runs as it does there, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.hf.load import load_model
from agentkv_runtime.programs import open_session
from typer.testing import CliRunner

from agentkv.cli import app
from tests.architectures.outcome import TOLERANCE, Refused, Runs, outcome, random_model
from tests.architectures.table import TABLE, read_table
from tests.architectures.tiny_configs import CAUSAL_TYPES, UNBUILDABLE, VARIANTS, tiny_config
from tests.driver import Driver
from tests.models import write_tokenizer
from tests.rows import one_in


def test_the_table_speaks_of_every_architecture() -> None:
    assert sorted(read_table()) == sorted({*CAUSAL_TYPES, *VARIANTS} - set(UNBUILDABLE))


# What tests/conformance/configs.py has no model of; `make soak` and `make models` run every architecture.
@pytest.mark.parametrize(
    ("name", "rows"),
    one_in(
        4,
        [
            ("nanochat", 96),  # q and k norms without weights
            ("afmoe", 96),  # takes views of what attention hands out
            ("llama-dynamic-rope", 48),
            ("roberta", 95),  # numbers positions from behind the padding's
            ("minimax", 96),  # lightning attention
            ("deepseek_v32", 96),  # picks tokens by an index
        ],
    ),
)
def test_it_runs_up_to_its_last_position(name: str, rows: int, tmp_path: Path) -> None:
    found = outcome(random_model(tiny_config(name)), tmp_path)
    assert isinstance(found, Runs), found
    assert found.error < TOLERANCE
    assert found.rows == found.max_positions == rows


@pytest.mark.parametrize(
    "name",
    one_in(
        2,
        [
            "deepseek_v3",  # latents, experts in groups
            "falcon",  # indexes heads from the end
        ],
    ),
)
def test_it_runs_on_mlx(name: str, tmp_path: Path) -> None:
    found = outcome(random_model(tiny_config(name)), tmp_path, backend="mlx")
    assert isinstance(found, Runs), found
    assert found.error < TOLERANCE


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("jetmoe", "jetmoe|cannot be lowered", marks=pytest.mark.soak),  # says so behind its tracing
        ("xlnet", "xlnet has no attention that goes through"),
        ("deepseek_v4", "layer 0 of deepseek_v4 is 'heavily_compressed_attention'"),
        ("bert-encoder", "bert attends with attention that is not causal"),
        ("inkling_text", "inkling_text attends with position biases"),
    ],
)
def test_it_is_refused_by_name(name: str, reason: str, tmp_path: Path) -> None:
    found = outcome(random_model(tiny_config(name)), tmp_path)
    assert isinstance(found, Refused), found
    with pytest.raises(ExportError, match=reason):
        raise ExportError(found.reason)


@torch.no_grad()
@pytest.mark.parametrize(("options", "positions"), one_in(2, [(["--max-context", "64"], 64), ([], 32)]))
def test_a_long_rope_folder_ends_where_its_factors_do(options: list[str], positions: int, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "out"
    model = random_model(tiny_config("phi3-long-rope"))
    model.save_pretrained(source)
    write_tokenizer(source)
    done = CliRunner().invoke(
        app, ["export", str(source), str(target), "--quant", "none", "--max-tokens", "96", *options]
    )
    assert done.exit_code == 0, done.output
    folder = read_model_folder(target)
    assert folder.manifest.max_positions == positions
    session = open_session(folder, capacity=128, kv_dtype="fp32")
    tokens = torch.arange(positions)
    got = Driver(session, session.cache).feed(0, tokens.tolist(), (7, 1))
    want = model(tokens[None], use_cache=False).logits[0]
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: transformers.Qwen2VLConfig(), "qwen2_vl is a vision-language checkpoint"),
        (lambda: transformers.LlavaConfig(), "llava is a vision-language checkpoint"),
        (lambda: transformers.VoxtralConfig(), "voxtral is a audio checkpoint"),
        (lambda: transformers.T5Config(), "t5 is an encoder-decoder"),
        (lambda: transformers.ViTConfig(), "vit is no causal language model"),
    ],
)
def test_other_checkpoints_are_refused_in_one_line(config: Any, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config().to_dict(), default=str))
    with pytest.raises(ExportError, match=reason) as refusal:
        load_model(tmp_path)
    assert len(str(refusal.value)) < 200 + len(str(tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in (*CAUSAL_TYPES, *VARIANTS) if name not in UNBUILDABLE])
def test_every_architecture_is_as_the_table_says(name: str, tmp_path: Path) -> None:
    found = outcome(random_model(tiny_config(name)), tmp_path)
    if isinstance(found, Runs):
        assert found.error < TOLERANCE
    assert read_table()[name] == isinstance(found, Runs), f"{found}: write {TABLE} anew"
