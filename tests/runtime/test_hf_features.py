"""Features beside the logits: the residual streams that EAGLE-3 heads read; the program is otherwise the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from agentkv_runtime._core import ExecuTorchProgram
from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.export.cpu.feed_forward import replace_feed_forward
from agentkv_runtime.export.cpu.norms import linear_norms
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.norms import replace_norms
from agentkv_runtime.export.rotary import own_rotary
from agentkv_runtime.folder.manifest import FeatureInfo
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.hf.features import feature_layers
from agentkv_runtime.hf.op import active_cache
from agentkv_runtime.hf.wrapper import CachedForward

from tests.conftest import FolderFactory
from tests.driver import Driver, Logits, native_driver
from tests.models import KINDS, tiny_model, tiny_spec
from tests.runtime.growing_cache import GrowingCache


@pytest.mark.parametrize(
    ("n_layers", "layers"), [(1, (1, 1, 1)), (2, (1, 1, 2)), (4, (1, 2, 4)), (8, (2, 4, 5)), (32, (2, 16, 29))]
)
def test_low_middle_and_high_layers(n_layers: int, layers: tuple[int, int, int]) -> None:
    assert feature_layers(n_layers, "eagle") == layers


# Their layers need preparing to run through a cache, or their last norm has another name.
OTHERS = ("llama4", "bloom", "lfm2", "qwen3_next", "bamba", "mamba2", "mamba", "kimi", "recurrent_gemma")


@torch.no_grad()
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OTHERS])
def test_features_are_the_hidden_states_of_transformers(kind: str) -> None:
    tokens, position, rows = torch.arange(3, 22), torch.arange(19), torch.tensor([18, 4])
    model = tiny_model(tiny_spec(kind, layers=4))
    out = model(tokens[None], use_cache=False, output_hidden_states=True)
    # After the last layer transformers gives out the normed stream only.
    streams = torch.cat([hidden[0] for hidden in out.hidden_states[1:4]], dim=-1)
    norm = model.get_decoder().norm
    with own_rotary(model):
        replace_norms(model, linear_norms)
        replace_feed_forward(model)
        load_all(model)
        with active_cache(GrowingCache()):
            forward = CachedForward(model, (1, 2, 3, 4))
            got = [forward(tokens[a:b], position[a:b], torch.arange(b - a)) for a, b in ((0, 7), (7, 19))]
    features = torch.cat([features for _, features in got])
    width = features.shape[1] // 4
    torch.testing.assert_close(features[:, : 3 * width], streams, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm(features[:, 3 * width :]), out.hidden_states[-1][0], rtol=1e-4, atol=1e-4)
    logits = torch.cat([logits for logits, _ in got])
    torch.testing.assert_close(logits[rows], out.logits[0, rows], rtol=1e-4, atol=1e-4)


def some_logits(driver: Driver) -> Logits:
    return np.concatenate([driver.step([(0, token) for token in piece], [0]) for piece in (range(3, 12), [12], [7, 8])])


@torch.no_grad()
def test_a_program_with_features_is_otherwise_the_same(tiny_exported_folder: FolderFactory, tmp_path: Path) -> None:
    lowered = lower_model(tiny_model(tiny_spec("gemma3")), max_tokens=64, max_logits=64, features="eagle")
    assert lowered.delegate_calls == {"AgentKVCPU": 4, "XnnpackBackend": 4}
    lowered.write(tmp_path / "model.pte")
    driver = native_driver(ExecuTorchProgram(str(tmp_path / "model.pte")))
    plain = native_driver(ExecuTorchProgram(str(tiny_exported_folder("gemma3") / "model.pte")))
    np.testing.assert_array_equal(some_logits(driver), some_logits(plain))
    assert lowered.features == FeatureInfo(layers=(1, 1, 2), width=192)

    out = tiny_model(tiny_spec("gemma3"))(torch.tensor([[*range(3, 13), 7, 8]]), output_hidden_states=True)
    given = driver.program.features()
    assert given.shape == (2, 192)
    np.testing.assert_array_equal(given[:, :64], given[:, 64:128])
    np.testing.assert_allclose(given[:, :64], out.hidden_states[1][0, -2:], rtol=1e-4, atol=1e-4)


def test_layers_that_are_not_there_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="after layer 3 of a model that has layers 1 to 2"):
        CachedForward(tiny_model(tiny_spec("llama")), (1, 3))
