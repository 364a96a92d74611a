"""What is printed of a model's weights: by kind of layer, and the worst by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.folder.model_folder import read_model_folder

from agentkv.cli.weights import Weight, loss_text, print_weights, quantization_text, size_text
from tests.runtime.folders import write_folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("the embedding", "embedding"),
        ("lm_head", "head"),
        ("embed_out", "head"),
        ("model.layers.0.self_attn.q_proj", "q_proj"),
        ("model.layers.11.mlp.down_proj", "down_proj"),
        ("model.layers.3.mlp.experts.gate_up_proj", "experts' gate_up_proj"),
        ("model.layers.3.mlp.experts.7.w1", "experts' w1"),
        ("model.layers.3.mlp.gate", "gate"),
        ("transformer.h.0.attn.c_attn", "c_attn"),
        ("model.layers.2.dual_head", "dual_head"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert Weight(name, None, None, None, None).kind == kind


def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, every: bool = False, **fields: Any) -> list[str]:
    print_weights(read_model_folder(write_folder(tmp_path / "model", **fields)).manifest, every=every)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


LAYERS = {
    "the embedding": (1000, 2000, None, None),
    "layers.0.q_proj": (100, 50, 4, 0.10),
    "layers.1.q_proj": (300, 150, 4, 0.20),
    "layers.0.[bold]": (100, 100, 8, 0.01),
    "lm_head": (1000, 1000, 8, 0.02),
}
FIELDS = ("weight_counts", "weight_bytes", "weight_bits", "weight_errors")
QUANTISED = {
    field: {name: facts[at] for name, facts in LAYERS.items() if facts[at] is not None}
    for at, field in enumerate(FIELDS)
}


@pytest.mark.parametrize(
    ("fields", "every", "rows"),
    [
        pytest.param(
            QUANTISED,
            False,
            [
                "embedding 1 16.00 60.6%",
                "q_proj 2 4.00 6.1% 17.50% 20.00%",  # the larger counts for more
                "[bold] 1 8.00 3.0% 1.00% 1.00%",
                "head 1 8.00 30.3% 2.00% 2.00%",
                "the worst 4 of 5 (--all: every one)",
                "layers.1.q_proj 4.00 20.00%",
                "layers.0.q_proj 4.00 10.00%",
                "lm_head 8.00 2.00%",
                "layers.0.[bold] 8.00 1.00%",
            ],
            id="quantised",
        ),
        pytest.param(
            QUANTISED, True, ["every weight, the worst first", "layers.0.[bold] 8.00 1.00%", "the embedding 16.00"],
            id="all of them",
        ),
        pytest.param(
            {"weight_counts": {"a.0.up": 10, "lm_head": 10}, "weight_bytes": {"a.0.up": 40, "lm_head": 40}},
            False,
            ["up 1 32.00 50.0%", "head 1 32.00 50.0%", "Nothing was lost of them, or the backend does not say."],
            id="not quantised",
        ),
        pytest.param(
            {"weight_errors": {"a.0.up": 0.1, "a.1.up": 0.3}, "weight_bits": {"a.0.up": 4, "a.1.up": 8}},
            False,
            ["up 2 4/8 20.00% 30.00%", "a.1.up 8 30.00%", "a.0.up 4 10.00%"],
            id="an older export",
        ),
        pytest.param(
            {}, False, ["Nothing is said of weights: older exports do not. Export the model again."], id="none",
        ),
    ],
)  # fmt: skip
def test_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], every: bool, rows: list[str]
) -> None:
    shown = printed(tmp_path, capsys, every=every, **fields)
    assert [line for line in shown if line in rows] == rows
    assert all(line == line.strip() for line in shown)


def test_only_five_of_many_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = {f"layers.{at}.up": at / 100 for at in range(9)}
    shown = printed(tmp_path, capsys, weight_errors=errors)
    assert [line.split()[0] for line in shown if line.startswith("layers.")] == [
        f"layers.{at}.up" for at in (8, 7, 6, 5, 4)
    ]


def test_sizes_and_loss_in_words(tmp_path: Path) -> None:
    facts = read_model_folder(write_folder(tmp_path / "model", b"x" * 2500, **QUANTISED)).manifest
    assert size_text(facts) == "2.4 KiB, 8.0 bits per weight"
    lost = (100 * 0.1 + 300 * 0.2 + 100 * 0.01 + 1000 * 0.02) / 1500
    assert f"differ from their own by {100 * lost:.2f}% (relative error, weighted by size)" in str(loss_text(facts))
    older = read_model_folder(write_folder(tmp_path / "older")).manifest
    assert (size_text(older), loss_text(older)) == ("7 B", None)


def test_types_of_a_file_are_counted(tmp_path: Path) -> None:
    types = {"the embedding": "q6_k as affine8", "a.0.up": "q4_k", "a.1.up": "q4_k"}
    facts = read_model_folder(write_folder(tmp_path / "model", quantization="file", weight_types=types)).manifest
    assert quantization_text(facts) == "file: 2 q4_k, 1 q6_k as affine8"
    older = read_model_folder(write_folder(tmp_path / "older", quantization="8da4w")).manifest
    assert quantization_text(older) == "8da4w"
