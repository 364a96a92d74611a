"""transformers without a cache, in float32, against both paths: the eager oracle and exported programs run natively."""

from __future__ import annotations

import numpy as np
import pytest
from agentkv_runtime import _core

from tests.conftest import FolderFactory
from tests.driver import native_driver, oracle_driver
from tests.integration.configs import CONFIGS
from tests.integration.scenario import Checked, run_scenario
from tests.reference import Reference

TOLERANCE = 1e-4
CAPACITY = 160


def report(name: str, path: str, checked: Checked) -> None:
    spread = sum(checked.spread) / len(checked.spread)
    print(f"\n{name} {path}: max abs logit error {checked.worst:.2e} over {checked.rows} rows (logit std {spread:.2f})")
    assert checked.rows > 120
    assert 1 < spread < 5


@pytest.mark.parametrize("name", CONFIGS)
def test_oracle(tiny_hf_folder: FolderFactory, name: str) -> None:
    kind, fields = CONFIGS[name]
    folder = tiny_hf_folder(kind, **fields)
    checked = run_scenario(oracle_driver(folder, capacity=CAPACITY), Reference(folder), 384)
    report(name, "oracle", checked)
    assert checked.worst <= TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
def test_exported(tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory, name: str) -> None:
    kind, fields = CONFIGS[name]
    program = _core.ExecuTorchProgram(str(tiny_exported_folder(kind, **fields) / "model.pte"))
    checked = run_scenario(native_driver(program, capacity=CAPACITY), Reference(tiny_hf_folder(kind, **fields)), 384)
    report(name, "exported", checked)
    assert checked.worst <= TOLERANCE


@pytest.mark.parametrize("name", ["llama-gqa2-d64", "mistral-gqa8-d80-w8", "gemma3-gqa2-d64-w8-tied"])
def test_long_context(tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory, name: str) -> None:
    kind, fields = CONFIGS[name]
    program = _core.ExecuTorchProgram(str(tiny_exported_folder(kind, **fields) / "model.pte"))
    driver = native_driver(program, capacity=1200)
    tokens = np.random.default_rng(7).integers(3, 384, 1100).tolist()
    logits = driver.feed(0, tokens, [64, 7, *[61] * 17])
    worst = float(np.abs(logits - Reference(tiny_hf_folder(kind, **fields)).logits(tokens)).max())
    print(f"\n{name} exported, {len(tokens)} tokens: max abs logit error {worst:.2e}")
    assert worst <= TOLERANCE


@pytest.mark.parametrize(("kv_dtype", "unit"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
@pytest.mark.parametrize("name", ["llama-gqa2-d64", "mistral-gqa8-d80-w8"])
def test_half_pools(
    tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory, name: str, kv_dtype: str, unit: float
) -> None:
    """Rounding K and V to `unit` moves the logits by about as much, on both paths; float32 pools err far less."""
    kind, fields = CONFIGS[name]
    folder = tiny_hf_folder(kind, **fields)
    reference = Reference(folder)
    program = _core.ExecuTorchProgram(str(tiny_exported_folder(kind, **fields) / "model.pte"))
    native = run_scenario(native_driver(program, capacity=CAPACITY, kv_dtype=kv_dtype), reference, 384)
    oracle = run_scenario(oracle_driver(folder, capacity=CAPACITY, kv_dtype=kv_dtype), reference, 384)
    report(name, f"exported, {kv_dtype} pools", native)
    report(name, f"oracle, {kv_dtype} pools", oracle)
    bound = 16 * unit * max(native.spread)
    assert TOLERANCE < native.worst <= bound
    assert native.worst == pytest.approx(oracle.worst, rel=0.5)
