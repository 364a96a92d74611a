"""Mixtures of experts: the ops, and models that run them in the place of their own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agentkv_runtime.export.cpu.block_ops import block_expert_linear, block_linear
from agentkv_runtime.export.cpu.int8_experts import int8_expert_linear
from agentkv_runtime.export.cpu.int8_linear import int8_linear
from agentkv_runtime.export.experts import ExpertLinear, own_expert_layers
from agentkv_runtime.hf.attention import feeding
from agentkv_runtime.hf.deferred import defer, load_all
from agentkv_runtime.hf.expert_op import expert_linear, weighted_sum
from agentkv_runtime.hf.own_experts import is_experts, route_experts
from transformers import GptOssConfig, Qwen3MoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from tests.blocks import quantized
from tests.models import tiny_model, tiny_spec

ROWS, CHOICES, EXPERTS, INPUTS, OUTPUTS = 7, 3, 5, 32, 16


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def choices() -> torch.Tensor:
    return torch.stack([torch.randperm(EXPERTS)[:CHOICES] for _ in range(ROWS)])


@pytest.mark.parametrize("per_choice", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_each_choice_meets_its_own_weights(per_choice: bool, biased: bool) -> None:
    x = torch.randn((ROWS, CHOICES, INPUTS) if per_choice else (ROWS, INPUTS))
    weight, chosen = torch.randn(EXPERTS, OUTPUTS, INPUTS), choices()
    bias = torch.randn(EXPERTS, OUTPUTS) if biased else None
    got = expert_linear(x, chosen, weight, bias)
    slots = x if per_choice else x[:, None].expand(-1, CHOICES, -1)
    want = torch.einsum("tki,tkoi->tko", slots, weight[chosen])
    torch.testing.assert_close(got, want if bias is None else want + bias[chosen], rtol=1e-5, atol=1e-5)


def test_quantised_ones_are_quantised_linear_layers() -> None:
    x, chosen = torch.randn(ROWS, INPUTS), choices()
    codes = torch.randint(-8, 8, (EXPERTS, OUTPUTS, INPUTS), dtype=torch.int8)
    scales = torch.rand(EXPERTS, OUTPUTS, 1)
    got = int8_expert_linear(x, chosen, codes, scales, None, 4)
    zeros = torch.zeros(OUTPUTS, 1, dtype=torch.int8)
    for row in range(ROWS):
        for choice, expert in enumerate(chosen[row].tolist()):
            want = int8_linear(x[row : row + 1], codes[expert], scales[expert], zeros, None, 4)
            torch.testing.assert_close(got[row, choice], want[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("per_choice", [False, True])
def test_ones_in_blocks_are_linear_layers_in_blocks(per_choice: bool) -> None:
    x = torch.randn((ROWS, CHOICES, INPUTS) if per_choice else (ROWS, INPUTS))
    chosen, bias, kind = choices(), torch.randn(EXPERTS, OUTPUTS), 2
    rows = quantized(torch.randn(EXPERTS * OUTPUTS, INPUTS), "q4_0").view(EXPERTS, OUTPUTS, -1)
    got = block_expert_linear(x, chosen, rows, bias, kind)
    assert got.shape == (ROWS, CHOICES, OUTPUTS)
    for row in range(ROWS):
        for choice, expert in enumerate(chosen[row].tolist()):
            mine = x[row, choice] if per_choice else x[row]
            want = block_linear(mine[None], rows[expert], bias[expert], kind)
            torch.testing.assert_close(got[row, choice], want[0], rtol=1e-5, atol=1e-4)
    with pytest.raises(RuntimeError, match=r"weight \[E, O, I\], not \(7, 64\) and \(5, 16, 32\)"):
        block_expert_linear(torch.zeros(ROWS, 2 * INPUTS), chosen, rows, None, kind)


@pytest.mark.parametrize("per_choice", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_gradients_reach_all_that_is_multiplied(per_choice: bool, biased: bool) -> None:
    x = torch.randn((ROWS, CHOICES, INPUTS) if per_choice else (ROWS, INPUTS)).requires_grad_()
    weight, chosen = torch.randn(EXPERTS, OUTPUTS, INPUTS).requires_grad_(), choices()
    bias = torch.randn(EXPERTS, OUTPUTS).requires_grad_() if biased else None
    scores = torch.rand(ROWS, CHOICES).requires_grad_()
    slots = x if per_choice else x[:, None].expand(-1, CHOICES, -1)
    products = torch.einsum("tki,tkoi->tko", slots, weight[chosen])
    want = torch.einsum("tko,tk->to", products if bias is None else products + bias[chosen], scores)
    wanted = [each for each in (x, weight, bias, scores) if each is not None]
    got = weighted_sum(expert_linear(x, chosen, weight, bias), scores)
    along = torch.randn_like(want)
    gradients = zip(torch.autograd.grad(got, wanted, along), torch.autograd.grad(want, wanted, along), strict=True)
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_choices_are_summed_by_their_weights() -> None:
    x, weights = torch.randn(ROWS, CHOICES, OUTPUTS), torch.rand(ROWS, CHOICES)
    torch.testing.assert_close(weighted_sum(x, weights), torch.einsum("tko,tk->to", x, weights))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: a.update(chosen=a["chosen"].int()), "int64"),
        (lambda a: a.update(chosen=a["chosen"][:-1]), r"\[T, I\]"),
        (lambda a: a.update(x=a["x"][:, :-1]), r"\[E, O, I\]"),
        (lambda a: a.update(x=torch.zeros(ROWS, CHOICES + 1, INPUTS)), "4 rows of 3 choices"),
        (lambda a: a.update(bias=torch.zeros(EXPERTS, OUTPUTS + 1)), r"bias \[E, O\]"),
    ],
)
def test_what_does_not_go_together_is_refused(change: Callable[[dict[str, Any]], None], why: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.zeros(ROWS, INPUTS),
        "chosen": choices(),
        "weight": torch.zeros(EXPERTS, OUTPUTS, INPUTS),
        "bias": None,
    }
    change(arguments)
    with pytest.raises(RuntimeError, match=why):
        expert_linear(*arguments.values())
    with pytest.raises(RuntimeError, match="weighted_sum takes"):
        weighted_sum(torch.zeros(ROWS, CHOICES, OUTPUTS), torch.zeros(ROWS, CHOICES + 1))


def experts(kind: str) -> Any:
    sizes = {"hidden_size": INPUTS, "num_experts_per_tok": CHOICES, "experts_implementation": "eager"}
    if kind == "gpt_oss":
        module: Any = GptOssExperts(GptOssConfig(intermediate_size=OUTPUTS, num_local_experts=EXPERTS, **sizes))
    else:
        module = Qwen3MoeExperts(Qwen3MoeConfig(moe_intermediate_size=OUTPUTS, num_experts=EXPERTS, **sizes))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.requires_grad_(False)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_routed_experts_compute_what_the_model_does(kind: str, deferred: bool) -> None:
    module = experts(kind)
    rows, chosen, weights = torch.randn(ROWS, INPUTS), choices(), torch.rand(ROWS, CHOICES)
    want = module(rows, chosen, weights)
    route_experts(module)
    assert torch.equal(module(rows, chosen, weights), want)  # by itself it runs its own code
    with feeding(torch.arange(ROWS)):
        torch.testing.assert_close(module(rows, chosen, weights), want, rtol=1e-5, atol=1e-5)
    if deferred:
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, defer(parameter.shape, parameter.dtype, lambda parameter=parameter: parameter))
    for _ in range(2):  # twice does no harm
        own_expert_layers(module)
    assert {name for name, each in module.named_children() if isinstance(each, ExpertLinear)} == {
        "gate_up_proj",
        "down_proj",
    }
    load_all(module)
    assert all(each.weight.shape[2] == each.in_features for each in module.children() if hasattr(each, "in_features"))
    torch.testing.assert_close(module(rows, chosen, weights), want, rtol=1e-5, atol=1e-5)


def test_llama4_runs_only_what_was_chosen() -> None:
    model = tiny_model(tiny_spec("llama4"))
    moe = next(module for module in model.modules() if type(module).__name__ == "Llama4TextMoe")
    rows = torch.randn(1, ROWS, 64)
    with torch.no_grad():
        want, _ = moe(rows)
        route_experts(model)
        assert is_experts(moe.experts)
        assert torch.equal(moe(rows)[0], want)
        with feeding(torch.arange(ROWS)):
            torch.testing.assert_close(moe(rows)[0], want, rtol=1e-5, atol=1e-5)
