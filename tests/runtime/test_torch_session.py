"""backend="torch" below the SDK: a Hugging Face folder as a session of the native step loop."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from agentkv_runtime import _core
from agentkv_runtime.errors import BackendError, UnsupportedModelError
from agentkv_runtime.torch_backend.session import TorchSession, open_torch_session

from tests.architectures.outcome import random_model
from tests.architectures.tiny_configs import tiny_config
from tests.conformance.scenario import run_scenario
from tests.conftest import FolderFactory
from tests.driver import Driver
from tests.reference import Reference


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_over_the_native_bookkeeping(tiny_hf_folder: FolderFactory, kind: str) -> None:
    folder = tiny_hf_folder(kind)
    session = open_torch_session(folder, capacity=160, kv_dtype="fp32", min_chunk=16)
    checked = run_scenario(Driver(session, session.cache), Reference(folder), session.vocab_size)
    assert checked.worst <= 1e-4
    assert session.allocated_cells == 128
    assert session.kv_bytes == 2 * 2 * 2 * 128 * 16 * 4  # layers, K and V, heads, cells, head_dim, float32


@pytest.mark.parametrize(("kv_dtype", "bound"), [("fp32", 1e-4), ("fp16", 5e-3), ("bf16", 5e-2), ("int8", 1e-2)])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_on_a_gpu_floats_stay_as_wide_as_the_cache_has_them(
    tiny_hf_folder: FolderFactory, kind: str, kv_dtype: str, bound: float
) -> None:
    """The same arithmetic on the CPU."""
    folder = tiny_hf_folder(kind)
    narrow, wide = (open_torch_session(folder, capacity=40, kv_dtype=kv_dtype) for _ in range(2))
    narrow.layer._widens = False
    rows = [Driver(session, session.cache).feed(0, [5, 6, 7, 8]) for session in (narrow, wide)]
    np.testing.assert_allclose(rows[0], rows[1], atol=bound)


@pytest.mark.parametrize("device", ["cuda:63", "mps:9", "meta", "hpu", "toaster"])
def test_a_device_that_there_is_not_is_refused_before_weights_are_read(tmp_path: Path, device: str) -> None:
    with pytest.raises(BackendError, match=rf"cannot compute on device '{device}': [^.].{{,200}}\. Leave device out"):
        open_torch_session(tmp_path / "no folder", capacity=40, device=device)


def test_it_is_a_program_with_a_cache(tiny_hf_folder: FolderFactory) -> None:
    session = open_torch_session(tiny_hf_folder("llama"), capacity=40, max_tokens=8, max_logits=4)
    assert isinstance(session, _core.ModelRunner)
    assert isinstance(session.cache, _core.TreeSeqCache)
    assert (session.vocab_size, session.max_tokens, session.max_logits) == (384, 8, 4)
    assert (session.cache.capacity, session.kv_bytes, session.allocated_cells) == (40, 0, 0)


def test_an_accepted_chain_is_moved_and_the_sequence_contiguous(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("llama")
    session = open_torch_session(folder, capacity=40, kv_dtype="fp32")
    driver = Driver(session, session.cache)
    driver.feed(0, [5, 6])
    session.cache.propose([-1, -1, 1])
    driver.step([(0, 7), (0, 8), (0, 9), (0, 10)])  # the token 7, then nodes 8, 9 and below it 10
    session.cache.commit([1, 2])
    assert session.cache.seq_runs(0) == [(0, 0, 5)]
    np.testing.assert_allclose(
        driver.step([(0, 11)])[0], Reference(folder).next_logits([5, 6, 7, 9, 10, 11]), atol=1e-5
    )


def test_features_are_the_residual_stream(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("llama")
    session = open_torch_session(folder, capacity=40, kv_dtype="fp32", feature_layers=(1, 2))
    assert (session.feature_dim, open_torch_session(folder, capacity=40).feature_dim) == (128, 0)
    driver = Driver(session, session.cache)
    logits = driver.feed(0, [5, 6, 7])
    features = session.features()
    assert features.shape == (3, 128)
    low, top = features[:, :64], features[:, 64:]
    model = session.model.model
    with torch.inference_mode():
        normed = model.model.norm(torch.from_numpy(top))
        np.testing.assert_allclose(model.lm_head(normed).numpy(), logits, atol=1e-5)
    assert np.abs(low - top).max() > 1e-3
    driver.step([(0, 8)])
    assert session.features().shape == (1, 128)
    with pytest.raises(UnsupportedModelError, match="after layer 3"):
        open_torch_session(folder, capacity=40, feature_layers=(3,))


def test_a_forward_that_fails_leaves_the_cache(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("llama")
    session = open_torch_session(folder, capacity=40, kv_dtype="fp32")
    driver = Driver(session, session.cache)
    before = driver.feed(0, [5, 6, 7, 8])
    with pytest.raises(_core.ForwardFailed, match="IndexError"):
        driver.step([(0, 384)])
    assert session.cache.used == 4
    np.testing.assert_allclose(driver.step([(0, 9)])[0], Reference(folder).next_logits([5, 6, 7, 8, 9]), atol=1e-4)
    driver.rollback(0, 2)
    np.testing.assert_allclose(driver.feed(0, [7, 8]), before[2:], atol=1e-5)


@pytest.mark.parametrize("choice", [{"kv_dtype": "int2"}, {"kv_dtype": "int4/int8"}, {"dtype": "int8"}])
def test_unknown_dtypes_are_refused(tiny_hf_folder: FolderFactory, choice: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(choice.values()))}.*fp16"):
        open_torch_session(tiny_hf_folder("llama"), capacity=40, **choice)


def test_half_weights(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("llama")
    session = open_torch_session(folder, capacity=40, dtype="bf16", kv_dtype="bf16")
    logits = Driver(session, session.cache).feed(0, [5, 6, 7, 8])
    assert 1e-4 < np.abs(logits - Reference(folder).logits([5, 6, 7, 8])).max() < 0.5


def test_a_dropped_session_is_collected(tiny_hf_folder: FolderFactory) -> None:
    alive: weakref.ref[TorchSession] = weakref.ref(open_torch_session(tiny_hf_folder("llama"), capacity=40))
    gc.collect()
    assert alive() is None


def test_without_torch_it_says_what_to_do() -> None:
    code = """
import sys
sys.modules["torch"] = None
from agentkv_runtime.errors import BackendError
from agentkv_runtime.torch_backend.session import open_torch_session
try:
    open_torch_session("some-model", capacity=8)
except BackendError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for hint in ("some-model", "'torch'", "agentkv-sdk[export]", "agentkv export some-model"):
        assert hint in run.stdout


def test_how_far_a_history_may_go(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    assert open_torch_session(tiny_hf_folder("llama"), capacity=40).max_positions == 2048
    long = tmp_path / "long"
    random_model(tiny_config("phi3-long-rope")).save_pretrained(long)
    assert open_torch_session(long, capacity=40).max_positions == 32


def test_a_model_that_says_something_else_through_a_cache_is_refused(tmp_path: Path) -> None:
    random_model(tiny_config("moshi")).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="moshi computes something else through the cache"):
        open_torch_session(tmp_path, capacity=40)
