"""Every backend against transformers without a cache, in float32."""

from __future__ import annotations

import numpy as np
import pytest
from agentkv_runtime.backends import BACKENDS

from tests.conformance.configs import CONFIGS, OTHER_KINDS
from tests.conformance.programs import Model
from tests.conformance.scenario import Checked, run_scenario
from tests.conformance.trees import trees_against_branches
from tests.conftest import FolderFactory
from tests.reference import Reference
from tests.rows import in_turn, one_in

TOLERANCE = 1e-4
CAPACITY = 160


@pytest.fixture
def model(name: str, tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory) -> Model:
    return Model(name, tiny_hf_folder, tiny_exported_folder)


def report(what: str, checked: Checked) -> None:
    spread = sum(checked.spread) / len(checked.spread)
    print(f"\n{what}: max abs logit error {checked.worst:.2e} over {checked.rows} rows (logit std {spread:.2f})")
    assert checked.rows > 120
    assert 1 < spread < 5


@pytest.mark.parametrize(("name", "backend"), one_in(2, in_turn([*CONFIGS], BACKENDS)))
def test_chunks_forks_rollbacks_holes_and_mixed_steps(model: Model, backend: str) -> None:
    checked = run_scenario(model.driver(backend, capacity=CAPACITY), Reference(model.hf_folder), 384)
    report(f"{model.name} on {backend}", checked)
    assert checked.worst <= TOLERANCE


@pytest.mark.parametrize(("name", "backend"), one_in(2, in_turn([*OTHER_KINDS], BACKENDS)))
def test_other_ways_to_attend(model: Model, backend: str) -> None:
    checked = run_scenario(model.driver(backend, capacity=CAPACITY), Reference(model.hf_folder), 384)
    report(f"{model.name} on {backend}", checked)
    assert checked.worst <= TOLERANCE


@pytest.mark.parametrize(("backend", "name"), in_turn([*BACKENDS], ["llama-gqa2-d64", "mistral-gqa8-d80-w8"]))
def test_draft_trees(model: Model, backend: str) -> None:
    trees = model.driver(backend, trees=True, capacity=512, min_chunk=16)
    plain = model.driver(backend, trees=True, capacity=1024, min_chunk=16)
    found = trees_against_branches(trees, plain)
    print(f"\n{model.name} on {backend}: {found}")
    assert found.worst <= TOLERANCE
    assert found.accepted > 10


@pytest.mark.parametrize(
    ("name", "backend"),
    in_turn(["llama-gqa2-d64", "mistral-gqa8-d80-w8", "gemma3-gqa2-d64-w8-tied"], ["cpu", "mlx"]),
)
def test_long_context(model: Model, backend: str) -> None:
    driver = model.driver(backend, capacity=1200)
    tokens = np.random.default_rng(7).integers(3, 384, 1100).tolist()
    logits = driver.feed(0, tokens, [64, 7, *[61] * 17])
    worst = float(np.abs(logits - Reference(model.hf_folder).logits(tokens)).max())
    print(f"\n{model.name} on {backend}, {len(tokens)} tokens: max abs logit error {worst:.2e}")
    assert worst <= 2 * TOLERANCE  # transformers' own float32 frequencies are off by a bit, times a thousand positions


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kv_dtype", "unit"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
@pytest.mark.parametrize("name", ["llama-gqa2-d64", "mistral-gqa8-d80-w8"])
def test_half_pools(model: Model, backend: str, kv_dtype: str, unit: float) -> None:
    """Rounding K and V to `unit` moves the logits by about as much, on every backend; float32 pools err far less."""
    driver = model.driver(backend, capacity=CAPACITY, kv_dtype=kv_dtype)
    checked = run_scenario(driver, Reference(model.hf_folder), 384)
    report(f"{model.name} on {backend}, {kv_dtype} pools", checked)
    assert TOLERANCE < checked.worst <= 16 * unit * max(checked.spread)
    if kv_dtype == "fp16":
        assert checked.worst <= 5e-3


@pytest.mark.parametrize(
    ("name", "dtype"),
    one_in(3, in_turn(["llama-gqa2-d64", "qwen3-gqa4-d128-tied", "smollm-gqa3-d64-tied"], ["fp16", "bf16"])),
)
def test_half_programs(model: Model, dtype: str) -> None:
    """Weights and activations in half precision err as those of transformers do."""
    reference, half = Reference(model.hf_folder), Reference(model.hf_folder, dtype)
    tokens = np.random.default_rng(3).integers(3, 384, 100).tolist()
    want = reference.logits(tokens)
    error = model.driver("mlx", dtype=dtype, kv_dtype=dtype, capacity=CAPACITY).feed(0, tokens, [1, 50]) - want
    theirs = half.logits(tokens) - want
    largest, rms, their_rms = np.abs(error).max(), np.sqrt((error**2).mean()), np.sqrt((theirs**2).mean())
    print(
        f"\n{model.name} in {dtype} on mlx: max abs logit error {largest:.2e} of {np.abs(want).max():.1f},"
        f" rms {rms:.2e} (transformers {their_rms:.2e})"
    )
    assert 0 < rms <= 1.25 * their_rms
    if dtype == "fp16":
        assert largest <= 5e-3 * np.abs(want).max()


@pytest.mark.parametrize(
    ("name", "dtype"),
    one_in(
        4,
        [
            ("qwen3next-delta-rule", "fp16"),
            ("bamba-mamba2-attention", "bf16"),
            ("mamba-scan-alone", "bf16"),
            ("kimi-delta-rule-latent", "fp16"),
        ],
    ),
)
def test_half_programs_with_states(model: Model, dtype: str) -> None:
    """Most rows err as those of transformers do; in a few, rounding picks another expert, here or there."""
    reference, half = Reference(model.hf_folder), Reference(model.hf_folder, dtype)
    tokens = np.random.default_rng(3).integers(3, 384, 100).tolist()
    want = reference.logits(tokens)
    got = model.driver("mlx", dtype=dtype, kv_dtype=dtype, capacity=CAPACITY).feed(0, tokens, [1, 50])
    error, theirs = (float(np.median(np.abs(rows - want))) for rows in (got, half.logits(tokens)))
    print(f"\n{model.name} in {dtype} on mlx: median abs logit error {error:.2e} (transformers {theirs:.2e})")
    assert 0 < error <= 1.25 * theirs
