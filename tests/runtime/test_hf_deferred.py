"""Deferred parameters: absent until somebody needs them, and gone again after it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from agentkv_runtime.errors import ExportError
from agentkv_runtime.hf.deferred import defer, is_deferred, load_all, loading_as_it_runs, present, stored, value
from agentkv_runtime.hf.load import load_model, stream_model
from agentkv_runtime.hf.streaming import streamed_model
from agentkv_runtime.hf.weights import FolderWeights
from safetensors.torch import load_file, save_file
from torch import nn

from tests.conftest import FolderFactory

KINDS = ["llama", "qwen3", "phi3", "gemma3"]


def linear(loads: list[str]) -> nn.Linear:
    """A layer whose weight is all twos, and counts how often it is loaded."""

    def load() -> torch.Tensor:
        loads.append("weight")
        return torch.full((3, 2), 2.0, dtype=torch.bfloat16)

    layer = nn.Linear(2, 3, bias=False)
    layer.weight = defer((3, 2), torch.float32, load)
    return layer


def test_a_value_is_loaded_each_time_and_in_the_dtype_of_the_parameter() -> None:
    loads: list[str] = []
    weight = linear(loads).weight
    assert is_deferred(weight)
    assert loads == []
    assert stored(weight).dtype == torch.bfloat16
    assert value(weight).dtype == torch.float32
    assert value(weight).tolist() == [[2.0, 2.0]] * 3
    assert loads == ["weight"] * 3
    assert not is_deferred(value(weight))


def test_layers_load_while_they_run_and_cannot_be_read_otherwise() -> None:
    loads: list[str] = []
    model = nn.Sequential(linear(loads), nn.ReLU())
    weight = model[0].weight
    with loading_as_it_runs(model):
        for _ in range(2):
            assert model(torch.ones(1, 2)).tolist() == [[4.0] * 3]
        with pytest.raises(RuntimeError):
            nn.functional.linear(torch.ones(1, 2), model[0].weight)
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 5))  # a forward that fails leaves nothing behind either
        assert model[0].weight.numel() == 0
    assert len(loads) == 3
    assert model[0].weight is weight


def test_present_holds_for_a_block_and_load_all_for_good() -> None:
    loads: list[str] = []
    model = nn.Sequential(linear(loads), nn.Linear(2, 3, bias=False))
    weight = model[1].weight = model[0].weight
    with present(model):
        assert model[0].weight.tolist() == [[2.0, 2.0]] * 3
    assert model[0].weight is weight
    loads.clear()
    load_all(model)
    assert len(loads) == 1
    assert model[0].weight is model[1].weight
    assert not is_deferred(model[0].weight)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_streamed_model_says_what_the_whole_one_says(kind: str, tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder(kind)
    whole, streamed = load_model(folder), stream_model(folder)
    assert streamed is not None
    deferred = [name for name, parameter in streamed.named_parameters() if is_deferred(parameter)]
    assert deferred == [name for name, parameter in whole.named_parameters() if parameter.dim() > 1]
    tokens = torch.arange(1, 9)[None]
    with loading_as_it_runs(streamed):
        got = streamed(tokens, use_cache=False).logits
    assert torch.equal(got, whole(tokens, use_cache=False).logits)


def test_what_is_not_stored_as_it_is_needed_is_not_streamed(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tiny_hf_folder("llama")
    config = load_model(source).config
    tensors = load_file(source / "model.safetensors")
    for number, (name, changed) in enumerate(
        {
            "model.layers.0.mlp.up_proj.weight": None,  # missing
            "model.norm.weight": torch.ones(3),  # of another shape
            "lm_head.weight": tensors["lm_head.weight"].to(torch.int8),  # no floats
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        kept = {other: tensor for other, tensor in tensors.items() if other != name}
        save_file({**kept, name: changed} if changed is not None else kept, folder / "model.safetensors")
        assert streamed_model(config, FolderWeights(folder)) is None


def test_a_tied_table_may_be_stored_twice_but_not_as_two(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tiny_hf_folder("qwen3")
    config = load_model(source).config
    tensors = load_file(source / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    for other, streams in ((table.clone(), True), (table + 1, False)):
        save_file({**tensors, "lm_head.weight": other}, tmp_path / "model.safetensors")
        assert (streamed_model(config, FolderWeights(tmp_path)) is not None) == streams


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"no config\.json"):
        stream_model(tmp_path)
