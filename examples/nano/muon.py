"""Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon), in the precision that the CPU is fast at."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from .model import BFLOAT16

_QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum for matrices, each update made orthogonal and scaled to the RMS of AdamW's.

    `torch.optim.Muon` orthogonalises in bfloat16 always: on a CPU without instructions for it, 25 times as slow.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, group["lr"], group["weight_decay"], group["momentum"])

    def _update(self, matrix: Tensor, lr: float, weight_decay: float, momentum: float) -> None:
        average = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
        average.lerp_(matrix.grad, 1 - momentum)
        update = _orthogonal(matrix.grad.lerp(average, momentum))
        matrix.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * 0.2 * max(matrix.shape) ** 0.5)


def _orthogonal(update: Tensor, steps: int = 5) -> Tensor:
    """The nearest half-orthogonal matrix, about: Newton-Schulz with coefficients that are steepest at zero."""
    a, b, c = _QUINTIC
    made = update.bfloat16() if BFLOAT16 else update
    made = made.T if update.size(0) > update.size(1) else made
    made = made / made.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = made @ made.T
        made = torch.addmm(made, torch.addmm(gram, gram, gram, beta=b, alpha=c), made, beta=a)
    return (made.T if update.size(0) > update.size(1) else made).to(update.dtype)
