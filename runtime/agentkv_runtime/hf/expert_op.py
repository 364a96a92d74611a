"""Ops of a mixture of experts: a linear layer whose weights each row chooses, and the sum over a row's choices.

The tracer sees one op for all rows. Eager calls multiply expert by expert; in an exported program a delegate does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

__all__ = ["by_expert", "check_experts", "expert_linear", "weighted_sum"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def check_experts(
    x: torch.Tensor, chosen: torch.Tensor, weight: Sequence[int], bias: torch.Tensor | None
) -> tuple[int | torch.SymInt, int, int]:
    """Shape (T, K, O) of an expert layer's result. Raises RuntimeError for arguments that do not fit each other.

    `weight` is the shape `[E, O, I]` of the weights in any storage.
    """
    torch._check(
        chosen.dim() == 2 and chosen.dtype == torch.int64,
        lambda: f"expert_linear takes the choice of experts [T, K] int64, not {tuple(chosen.shape)} {chosen.dtype}",
    )
    torch._check(chosen.shape[1] > 0, lambda: "each row chooses one expert at least (num_experts_per_tok is 0)")
    torch._check(
        len(weight) == 3 and x.dim() in (2, 3) and x.shape[-1] == weight[2] and x.shape[0] == chosen.shape[0],
        lambda: (
            f"expert_linear takes x [T, I] or [T, K, I] and weight [E, O, I], not {tuple(x.shape)} and {tuple(weight)}"
        ),
    )
    torch._check(
        x.dim() == 2 or x.shape[1] == chosen.shape[1], lambda: f"x has {x.shape[1]} rows of {chosen.shape[1]} choices"
    )
    torch._check(
        bias is None or tuple(bias.shape) == tuple(weight[:2]),
        lambda: f"expert_linear takes bias [E, O], not {None if bias is None else tuple(bias.shape)}",
    )
    return chosen.shape[0], chosen.shape[1], weight[1]


def _slots(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Input row of each choice, `[T, K, I]`."""
    return x if x.dim() == 3 else x.unsqueeze(1).expand(-1, chosen.shape[1], -1)


def by_expert(
    x: torch.Tensor, chosen: torch.Tensor, outputs: int, layer: Callable[[torch.Tensor, int], torch.Tensor]
) -> torch.Tensor:
    """Calls `layer(rows [n, I], expert)` -> `[n, O]` for each chosen expert; returns the results as `[T, K, O]`."""
    slots = _slots(x, chosen)
    out = x.new_empty((*chosen.shape, outputs))
    for expert in chosen.unique().tolist():
        mine = torch.where(chosen == expert)
        out[mine] = layer(slots[mine], expert)
    return out


def _expert_linear(
    x: torch.Tensor, chosen: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    check_experts(x, chosen, weight.shape, bias)

    def layer(rows: torch.Tensor, expert: int) -> torch.Tensor:
        return functional.linear(rows, weight[expert], None if bias is None else bias[expert])

    return by_expert(x, chosen, weight.shape[1], layer)


def _expert_linear_fake(
    x: torch.Tensor, chosen: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return x.new_empty(check_experts(x, chosen, weight.shape, bias))


def _keep(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _expert_linear_backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, chosen, weight, bias = ctx.saved_tensors
    of_x = of_weight = of_bias = None
    if ctx.needs_input_grad[0]:
        of_slots = by_expert(gradient, chosen, weight.shape[2], lambda rows, expert: rows @ weight[expert])
        of_x = of_slots if x.dim() == 3 else of_slots.sum(1)
    if ctx.needs_input_grad[2]:
        slots, of_weight = _slots(x, chosen), torch.zeros_like(weight)
        for expert in chosen.unique().tolist():
            mine = torch.where(chosen == expert)
            of_weight[expert] = gradient[mine].T @ slots[mine]
    if ctx.needs_input_grad[3]:
        of_bias = torch.zeros_like(bias).index_add_(0, chosen.flatten(), gradient.flatten(0, 1))
    return of_x, None, of_weight, of_bias


def _check_sum(x: torch.Tensor, weights: torch.Tensor) -> None:
    torch._check(
        x.dim() == 3 and x.shape[:2] == weights.shape,
        lambda: f"weighted_sum takes x [T, K, O] and weights [T, K], not {tuple(x.shape)} and {tuple(weights.shape)}",
    )


def _weighted_sum(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    _check_sum(x, weights)
    return (x * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def _weighted_sum_fake(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    _check_sum(x, weights)
    return x.new_empty((x.shape[0], x.shape[2]))


def _weighted_sum_backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, weights = ctx.saved_tensors
    each = gradient.unsqueeze(1)
    return (each * weights.unsqueeze(-1)).to(x.dtype), (each * x).sum(-1).to(weights.dtype)


_LIBRARY.define("expert_linear(Tensor x, Tensor chosen, Tensor weight, Tensor? bias) -> Tensor")
_LIBRARY.impl("expert_linear", _expert_linear, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::expert_linear", _expert_linear_fake, lib=_LIBRARY)
torch.library.register_autograd("agentkv::expert_linear", _expert_linear_backward, setup_context=_keep, lib=_LIBRARY)
_LIBRARY.define("weighted_sum(Tensor x, Tensor weights) -> Tensor")
_LIBRARY.impl("weighted_sum", _weighted_sum, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::weighted_sum", _weighted_sum_fake, lib=_LIBRARY)
torch.library.register_autograd("agentkv::weighted_sum", _weighted_sum_backward, setup_context=_keep, lib=_LIBRARY)

# x [T, I], one row for all choices, or [T, K, I]; chosen [T, K] int64; weight [E, O, I]; bias [E, O] -> [T, K, O].
expert_linear = torch.ops.agentkv.expert_linear.default
# x [T, K, O], weights [T, K] -> [T, O].
weighted_sum = torch.ops.agentkv.weighted_sum.default
