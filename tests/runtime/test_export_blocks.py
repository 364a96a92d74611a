"""Weights as blocks of GGUF's types: their bytes as the package gguf reads them, their error, and who gets which."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from agentkv_runtime.export.blocks.importance import (
    calibration_text,
    calibration_windows,
    measure_importance,
    windows_of,
)
from agentkv_runtime.export.blocks.kinds import KINDS
from agentkv_runtime.export.blocks.making import planned_blocks
from agentkv_runtime.export.blocks.plan import plan_blocks
from agentkv_runtime.export.blocks.recipe import BITS, Choice, budget_of, choices_of, choose_kinds
from agentkv_runtime.export.choices import OWN_BLOCKS
from agentkv_runtime.export.experts import own_expert_layers
from agentkv_runtime.export.quantization import EMBEDDING, QuantizationError, Recipe
from agentkv_runtime.hf.deferred import loading_as_it_runs
from agentkv_runtime.hf.load import stream_model
from agentkv_runtime.text.tokenizer import Tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.blocks import as_numbers, quantized
from tests.models import tiny_model, tiny_spec, tiny_tokenizer

BITS_OF = {"q4_0": 4, "q4_1": 4, "q5_0": 5, "q5_1": 5, "q8_0": 8, "q4_k": 4, "q5_k": 5, "q6_k": 6}


def weight(outputs: int = 24, inputs: int = 512, seed: int = 0) -> torch.Tensor:
    """Normal numbers, and an outlier in every third row."""
    w = torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(seed)) * 0.03
    w[::3, 5] *= 4
    return w


def read(packed: torch.Tensor, kind: str) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(packed.numpy(), gguf.GGMLQuantizationType[kind.upper()]))


def relative(kind: str, w: torch.Tensor, importance: torch.Tensor | None, counts: torch.Tensor) -> float:
    difference = (read(quantized(w, kind, importance), kind) - w).square() * counts
    return float((difference.sum() / (w.square() * counts).sum()).sqrt())


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_as_large_as_the_format_says(kind: str) -> None:
    of = KINDS[kind]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]] == (of.block, of.size)
    packed = quantized(weight(), kind)
    assert packed.shape == (24, of.row_bytes(512))
    assert packed.dtype == torch.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_each_number_is_within_a_step_of_its_group_range(kind: str) -> None:
    w = weight()
    groups = w.view(-1, KINDS[kind].group)
    spread = groups.amax(-1).clamp(min=0) - groups.amin(-1).clamp(max=0)
    far = (read(quantized(w, kind), kind) - w).abs().view_as(groups).amax(-1)
    assert (far <= 2.4 * spread / 2 ** BITS_OF[kind]).all()


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_the_error_is_below_that_of_plain_rounding(kind: str) -> None:
    w = weight()
    type_ = gguf.GGMLQuantizationType[kind.upper()]
    plain = torch.from_numpy(gguf.dequantize(gguf.quantize(w.numpy(), type_), type_))
    ours = read(quantized(w, kind), kind)
    groups = (-1, KINDS[kind].group)
    mine, theirs = ((x - w).square().view(groups).sum(-1) for x in (ours, plain))
    assert (mine <= theirs * 1.02).all()
    assert mine.sum() < 0.97 * theirs.sum()


@pytest.mark.parametrize(
    ("kind", "most"), [("q4_k", 0.075), ("q5_k", 0.038), ("q6_k", 0.018)], ids=lambda value: str(value)
)
def test_nested_kinds_lose_little_of_normal_numbers(kind: str, most: float) -> None:
    w = weight()
    assert relative(kind, w, None, torch.ones(512)) < most


@pytest.mark.parametrize("kind", KINDS)
def test_importance_lowers_the_error_that_counts(kind: str) -> None:
    w = weight()
    importance = torch.rand(512, generator=torch.Generator().manual_seed(1)) ** 6 + 1e-3
    assert relative(kind, w, importance, importance) < 0.99 * relative(kind, w, None, importance)


@pytest.mark.parametrize("kind", ["q4_1", "q5_0", "q8_0"])
def test_numbers_that_lie_on_the_grid_come_back(kind: str) -> None:
    type_ = gguf.GGMLQuantizationType[kind.upper()]
    w = torch.from_numpy(gguf.dequantize(gguf.quantize(weight().numpy(), type_), type_))
    assert relative(kind, w, None, torch.ones(512)) < 2e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 1e-9, 30000.0, -1e30])
def test_groups_of_one_value(kind: str, value: float) -> None:
    w = torch.full((2, 256), value)
    w[1, :128] = 0
    got = read(quantized(w, kind), kind)
    assert got.isfinite().all()
    if value == 0:
        assert not got.any()
    elif 1e-6 < abs(value) < 1e5:
        assert torch.allclose(got, w, rtol=0.02, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_importance_of_nothing_is_none(kind: str) -> None:
    w = weight()
    assert torch.equal(quantized(w, kind, torch.zeros(512)), quantized(w, kind))


def test_a_row_may_be_one_block() -> None:
    for kind, of in KINDS.items():
        w = weight(3, of.block)
        assert relative(kind, w, None, torch.ones(of.block)) < 0.12


def test_rows_of_a_large_weight_are_as_those_of_a_small_one() -> None:
    w = weight(600, 256)
    packed = quantized(w.to(torch.bfloat16), "q4_0")
    assert torch.equal(packed[590:], quantized(w[590:].to(torch.bfloat16), "q4_0"))


@pytest.mark.parametrize(
    ("w", "kind", "said"),
    [
        (torch.ones(2, 48), "q4_0", "do not divide into blocks of 32"),
        (torch.ones(2, 288), "q4_k", "do not divide into blocks of 256"),
        (torch.ones(2, 32), "q2_k", "do not divide"),
        (torch.ones(2, 256), "q2_k", "not quantised to q2_k"),
        (torch.tensor([[1.0] * 32, [torch.inf] * 32]), "q8_0", "output 1 has a number that is not finite"),
        (torch.tensor([[torch.nan] * 32]), "q4_1", "not finite"),
        (torch.tensor([[torch.nan] * 3]), "bf16", "not finite"),
    ],
    ids=["width", "width of a nested kind", "kind", "kind that is read only", "infinity", "nan", "nan as bfloat16"],
)
def test_what_does_not_fit_is_refused(w: torch.Tensor, kind: str, said: str) -> None:
    with pytest.raises(QuantizationError, match=said):
        quantized(w, kind)


@pytest.mark.parametrize(
    ("width", "kinds"),
    [(32, {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"}), (256, set(KINDS)), (288, set(KINDS) - {"q4_k", "q5_k", "q6_k"})],
)
def test_choices_are_what_the_width_allows(width: int, kinds: set[str]) -> None:
    w = weight(8, width)
    found = choices_of(as_numbers(w))
    assert {choice.kind for choice in found} == kinds
    for choice in found:
        packed = quantized(w, choice.kind)
        assert choice.size == packed.nbytes
        assert choice.loss == pytest.approx(float((read(packed, choice.kind) - w).square().sum()) / 2, rel=1e-3)


def test_the_budget_goes_to_what_gains_most_per_byte() -> None:
    calm = [Choice("q4_0", 18, 1.0), Choice("q8_0", 34, 0.1)]
    loud = [Choice("q4_0", 18, 9.0), Choice("q5_1", 24, 8.9), Choice("q8_0", 34, 1.0)]
    choices = {"calm": calm, "loud": loud}
    assert choose_kinds(choices, 36) == {"calm": "q4_0", "loud": "q4_0"}
    assert choose_kinds(choices, 52) == {"calm": "q4_0", "loud": "q8_0"}
    assert choose_kinds(choices, 68) == {"calm": "q8_0", "loud": "q8_0"}
    with pytest.raises(QuantizationError, match="36 bytes at least"):
        choose_kinds(choices, 35)
    with pytest.raises(QuantizationError, match="multiples of 32"):
        choose_kinds({"narrow": []}, 35)


SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def model(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=tied)).eval()


def layers_of(net: Any) -> dict[str, Any]:
    linears = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    return {EMBEDDING: net.get_input_embeddings(), **linears}


def weight_of(net: nn.Module, name: str) -> torch.Tensor:
    return net.get_parameter(f"{name}.weight").detach()


def tokens() -> torch.Tensor:
    return torch.randint(0, 128, (3, 32), generator=torch.Generator().manual_seed(2))


def test_what_may_be_chosen_has_its_bits() -> None:
    assert tuple(BITS) == OWN_BLOCKS


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quant", BITS)
def test_a_plan_keeps_to_its_budget(tied: bool, quant: str) -> None:
    net = model(tied)
    layers = layers_of(net)
    plan = plan_blocks(net, layers, quant, measure_importance(net, tokens()))
    assert ("lm_head" in plan.kinds) is not tied
    made = {
        name: quantized(layers[name].weight, kind, torch.from_numpy(plan.inputs[name]))
        for name, kind in plan.kinds.items()
    }
    shapes = {name: tuple(layers[name].weight.shape) for name in plan.kinds}
    heads = [EMBEDDING if tied else "lm_head"]
    assert sum(packed.nbytes for packed in made.values()) <= budget_of(shapes, heads, quant)
    if quant == "q8":
        assert set(plan.kinds.values()) == {"q8_0"}


def test_rows_that_no_blocks_divide_become_bfloat16() -> None:
    net = LlamaForCausalLM(LlamaConfig(**SMALL | {"hidden_size": 48, "intermediate_size": 96})).eval()
    layers = layers_of(net)
    plan = plan_blocks(net, layers, "q4")
    assert plan.kinds["model.layers.0.self_attn.q_proj"] == "bf16"
    assert plan.kinds["model.layers.0.mlp.down_proj"] in KINDS
    weight = layers["model.layers.0.self_attn.q_proj"].weight
    rows = planned_blocks(net, layers, Recipe("q4"))[weight].load()
    assert torch.equal(rows.view(torch.bfloat16), weight.detach().bfloat16())


@pytest.mark.parametrize(("scale", "kind"), [(1e-8, "bf16"), (1e20, "bf16"), (1.0, "blocks"), (0.0, "blocks")])
def test_numbers_far_from_one_become_bfloat16(scale: float, kind: str) -> None:
    net = model(tied=False)
    layers, recipe = layers_of(net), Recipe("q4")
    name = "model.layers.1.mlp.up_proj"
    with torch.no_grad():
        layers[name].weight *= scale
    assert (plan_blocks(net, layers, "q4").kinds[name] == "bf16") is (kind == "bf16")
    planned_blocks(net, layers, recipe)[layers[name].weight].load()
    assert recipe.errors[name] < 0.2


def test_layers_that_were_not_measured_count_as_the_middle_one() -> None:
    net = model(tied=False)
    layers, importance = layers_of(net), measure_importance(net, tokens())
    whole = plan_blocks(net, layers, "q4", importance).kinds
    del importance.inputs["model.layers.1.mlp.up_proj"], importance.outputs["model.layers.1.mlp.up_proj"]
    part = plan_blocks(net, layers, "q4", importance).kinds
    assert sum(part[name] != kind for name, kind in whole.items()) < len(whole) / 2


def test_what_no_gradient_reaches_or_is_no_number_is_not_trusted(caplog: pytest.LogCaptureFixture) -> None:
    net = model(tied=False)
    mlp = net.model.layers[1].mlp
    mlp.register_forward_hook(lambda _layer, _inputs, output: output.detach())
    importance = measure_importance(net, tokens())
    assert not {name for name in importance.outputs if "layers.1.mlp" in name}
    assert "model.layers.1.self_attn.q_proj" in importance.outputs
    assert "3 of 16 layers could not be measured" in caplog.text


@pytest.mark.parametrize("tied", [True, False])
def test_blocks_are_made_when_they_are_loaded_and_what_is_lost_is_noted(tied: bool) -> None:
    net = model(tied)
    layers, recipe = layers_of(net), Recipe("q4", importance=measure_importance(net, tokens()))
    planned = planned_blocks(net, layers, recipe)
    assert planned.keys() == {layer.weight for layer in layers.values()}
    assert recipe.errors == {}
    for weight, blocks in planned.items():
        rows = blocks.load()
        assert rows.shape == (len(weight), blocks.row_bytes)
        want = torch.from_numpy(gguf.dequantize(rows.numpy(), gguf.GGMLQuantizationType(blocks.type)))
        name = next(name for name, layer in layers.items() if layer.weight is weight)
        assert recipe.errors[name] == pytest.approx(float((want - weight).norm() / weight.norm()), rel=1e-3)
        assert torch.equal(rows, blocks.load())


def test_few_rows_that_count_are_not_missed() -> None:
    w = weight(outputs=4096, inputs=512)
    of_rows = torch.zeros(4096)
    of_rows[17] = 1000.0
    full = {c.kind: c.loss for c in choices_of(as_numbers(w[17:18]), None, of_rows[17:18].numpy())}
    for choice in choices_of(as_numbers(w), None, of_rows.numpy()):
        assert choice.loss == pytest.approx(full[choice.kind], rel=0.5)


def test_larger_budgets_never_lose_more() -> None:
    net = model(tied=False)
    layers, lost = layers_of(net), []
    for quant in ("q4", "q5", "q6", "q8"):
        total = 0.0
        for name, kind in plan_blocks(net, layers, quant).kinds.items():
            weight = layers[name].weight.detach()
            total += float((read(quantized(weight, kind), kind) - weight).square().sum())
        lost.append(total)
    assert all(less < more for more, less in pairwise(lost))


def test_importance_is_the_mean_square_of_inputs_and_gradients() -> None:
    net, windows = model(tied=False), tokens()
    seen: list[torch.Tensor] = []
    down = net.model.layers[1].mlp.down_proj
    hook = down.register_forward_hook(lambda _layer, inputs, _output: seen.append(inputs[0].detach()))
    importance = measure_importance(net, windows)
    hook.remove()
    name = "model.layers.1.mlp.down_proj"
    rows = torch.cat([each.flatten(0, 1) for each in seen])
    assert torch.allclose(importance.inputs[name], rows.square().mean(0), rtol=1e-4)
    for each in importance.outputs.values():
        assert (each >= 0).all()
        assert each.any()
    again = measure_importance(net, windows)
    assert all(torch.equal(values, again.inputs[layer]) for layer, values in importance.inputs.items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in net.parameters())
    assert not any(layer._forward_hooks for layer in net.modules() if isinstance(layer, nn.Linear))


def test_importance_of_experts_is_that_of_the_rows_that_meet_one() -> None:
    net: Any = tiny_model(tiny_spec("qwen3_moe", vocab=128))
    windows = tokens()
    want = measure_importance(net, windows)  # of the model's own code
    own_expert_layers(net)
    experts = net.model.layers[1].mlp.experts
    seen: dict[str, list[torch.Tensor]] = {"rows": [], "gradients": []}

    def keep(_layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        seen["rows"].append(inputs[0].detach().flatten(0, -2))
        output.register_hook(lambda gradient: seen["gradients"].append(gradient.flatten(0, -2)))

    for layer in (experts.gate_up_proj, experts.down_proj):
        name = f"model.layers.1.mlp.experts.{'gate_up_proj' if layer is experts.gate_up_proj else 'down_proj'}"
        hook = layer.register_forward_hook(keep)
        got = measure_importance(net, windows)
        hook.remove()
        rows, gradients = (torch.cat(each) for each in seen.values())
        assert len(gradients) == windows[:, 1:].numel() * 3  # choices
        assert torch.allclose(got.inputs[name], rows.square().mean(0), rtol=1e-4)
        over_all = gradients.square().sum(0) / (windows[:, 1:].numel() * 8)
        assert torch.allclose(got.outputs[name], over_all, rtol=1e-4)
        seen = {"rows": [], "gradients": []}
    assert set(got.inputs) - set(want.inputs) == {
        f"model.layers.{layer}.mlp.experts.{name}_proj" for layer in (0, 1) for name in ("gate_up", "down")
    }
    for kept, expected in ((got.inputs, want.inputs), (got.outputs, want.outputs)):
        for name, values in expected.items():
            assert torch.allclose(kept[name], values, rtol=1e-3, atol=1e-7), name


def test_importance_predicts_which_layer_is_more_sensitive() -> None:
    net, windows = model(tied=False), tokens()
    with torch.no_grad():
        net.model.layers[1].mlp.down_proj.weight *= 0.01
        net.model.layers[1].mlp.up_proj.weight *= 10
    importance = measure_importance(net, windows)
    losses = {}
    for name in ("model.layers.1.mlp.up_proj", "lm_head"):
        w = weight_of(net, name)
        found = choices_of(as_numbers(w), importance.inputs[name].numpy(), importance.outputs[name].numpy())
        losses[name] = next(choice.loss for choice in found if choice.kind == "q4_0") / w.numel()
    assert losses["lm_head"] > losses["model.layers.1.mlp.up_proj"]


def test_windows_are_taken_from_all_of_a_text() -> None:
    windows = windows_of(range(1000), first=[7], count=3, length=101)
    assert windows.shape == (3, 101)
    assert windows[:, 0].tolist() == [7, 7, 7]
    assert windows[:, 1].tolist() == [0, 300, 600]
    assert windows_of(range(250), count=8, length=100).shape == (2, 100)
    with pytest.raises(QuantizationError, match="Give one of 100"):
        windows_of(range(99), length=100)
    assert len(calibration_text()) > 100_000


def test_importance_of_a_model_that_loads_as_it_runs_is_that_of_one_in_memory(tmp_path: Path) -> None:
    net = model(tied=True)
    net.save_pretrained(tmp_path)
    streamed = stream_model(tmp_path)
    assert streamed is not None
    want = measure_importance(net, tokens())
    shares: list[float] = []
    with loading_as_it_runs(streamed):
        got = measure_importance(streamed, tokens(), shares.append)
    assert got.inputs.keys() == want.inputs.keys()
    assert got.outputs.keys() == want.outputs.keys() == {EMBEDDING, *want.inputs}
    for name, values in want.outputs.items():
        assert torch.allclose(got.outputs[name], values, rtol=1e-4), name
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert not any(layer.training for layer in streamed.modules())


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"short", "Give one of 256"), (b"\xff\xfe", "not UTF-8 text"), (None, "No such file")],
)
def test_texts_that_nothing_is_measured_on(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(QuantizationError, match=said):
        calibration_windows(Tokenizer(tiny_tokenizer(384)), model(tied=True).config, path)
