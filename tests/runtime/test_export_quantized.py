"""Quantised programs: what the delegate takes of them, and logits beside those of the quantised model run eagerly."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime._core import ProgramError
from agentkv_runtime.export.cpu import partition
from agentkv_runtime.export.linears import replace_transposed_linears
from agentkv_runtime.export.lower import LoweredModel, lower_model
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.target import choose_target
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.programs import load_program
from transformers import PreTrainedModel

from tests.architectures.outcome import random_model
from tests.architectures.tiny_configs import HISTORY, tiny_config
from tests.driver import native_driver
from tests.models import tiny_model, tiny_spec
from tests.rows import one_in

CHUNKS = (7, 1, 20, 3)


def lowered_model(model: PreTrainedModel, quant: Any) -> LoweredModel:
    return lower_model(model, quant=quant, max_tokens=HISTORY, max_logits=HISTORY)


@torch.no_grad()
def eager_logits(model: PreTrainedModel, quant: str, tokens: torch.Tensor) -> np.ndarray[Any, Any]:
    """Of the model after quantisation, weights and activations as torchao has them. Uses the model up."""
    replace_transposed_linears(model)
    choose_target("cpu", quant, "fp32").lowering().prepare(model, Recipe(quant), "fp32")  # type: ignore[arg-type]
    load_all(model)
    logits: np.ndarray[Any, Any] = model(tokens[None], use_cache=False).logits[0].numpy()
    return logits


def logits_of(lowered: LoweredModel, folder: Path, tokens: torch.Tensor) -> np.ndarray[Any, Any]:
    lowered.write(folder / "model.pte")
    driver = native_driver(load_program(folder / "model.pte"), capacity=2 * HISTORY)
    return driver.feed(0, tokens.tolist(), CHUNKS)


@pytest.mark.parametrize(
    ("name", "quant", "calls"),
    one_in(
        5,
        [
            ("qwen3", "8da4w", {"AgentKVCPU": 2}),
            ("phi3", "8da8w", {"AgentKVCPU": 2}),  # gate and up are one matrix, which the export takes apart
            ("qwen2", "8da8w", {"AgentKVCPU": 2}),  # q, k and v have biases
            ("gemma3_text", "8da8w", {"AgentKVCPU": 2, "XnnpackBackend": 1}),  # gelu by tanh, scaled embedding
            ("gpt2", "8da8w", None),  # LayerNorm is XNNPACK's
            ("qwen3_moe", "8da8w", None),  # experts are
            ("qwen3_next", "8da8w", None),
            ("bamba", "8da8w", None),
            ("lfm2", "8da8w", None),
            ("cohere", "8da8w", None),  # attention and feed-forward side by side
        ],
    ),
)
def test_logits_are_those_of_the_quantised_model(name: str, quant: str, calls: Any, tmp_path: Path) -> None:
    model = random_model(tiny_config(name))
    reference = copy.deepcopy(model)
    lowered = lowered_model(model, quant)
    assert calls is None or lowered.delegate_calls == calls
    vocab = reference.config.get_text_config().vocab_size
    tokens = torch.randint(1, vocab, (HISTORY,), generator=torch.Generator().manual_seed(2))
    full = reference(tokens[None], use_cache=False).logits[0].detach().numpy()
    want = eager_logits(reference, quant, tokens)
    got = logits_of(lowered, tmp_path, tokens)
    # An activation that rounds to the other side is a whole step of its row off, and what follows sees it.
    lost = np.sqrt(np.mean((full - want) ** 2))
    assert np.sqrt(np.mean((got - want) ** 2)) < 0.5 * lost


def test_a_program_without_one_of_its_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = partition.pack_weights

    def renamed(weights: Any) -> Any:
        store = pack(weights)
        for weight in weights[:1]:
            weight.name = "linear_of_somebody_else"
        return store

    monkeypatch.setattr(partition, "pack_weights", renamed)
    lowered = lowered_model(tiny_model(tiny_spec("llama", layers=1)), "8da8w")
    lowered.write(tmp_path / "model.pte")
    with pytest.raises(ProgramError, match=r"the program has no weight linear_of_somebody_else.*export the model"):
        load_program(tmp_path / "model.pte").make_session(capacity=16)


def test_a_weight_of_another_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = partition.pack_weights

    def swapped(weights: Any) -> Any:
        store = pack(weights)
        sizes = {weight.name: len(store.buffers[store.pte_data[weight.name].buffer_index]) for weight in weights}
        others = [weight for weight in weights if sizes[weight.name] != sizes[weights[0].name]]
        for other in others[:1]:
            weights[0].name = other.name
        return store

    monkeypatch.setattr(partition, "pack_weights", swapped)
    lowered = lowered_model(tiny_model(tiny_spec("llama", layers=1)), "8da8w")
    lowered.write(tmp_path / "model.pte")
    with pytest.raises(ProgramError, match=r"weight linear_\w+ (has \d+ bytes, not \d+|is used in two shapes)"):
        load_program(tmp_path / "model.pte").make_session(capacity=16)


def test_weights_lie_where_the_file_is_mapped(tmp_path: Path) -> None:
    shape = {"layers": 1, "hidden": 512, "intermediate": 2048, "vocab": 512}
    lowered = lowered_model(tiny_model(tiny_spec("llama", **shape)), "8da8w")
    path = tmp_path / "model.pte"
    lowered.write(path)
    program = load_program(path)
    program.make_session(capacity=16)
    mapped = sum(
        int(end, 16) - int(begin, 16)
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
        for begin, end in [line.split()[0].split("-")]
    )
    linears = 3 * 512 * 2048  # of the feed-forward layer alone, a byte each
    assert mapped > linears
