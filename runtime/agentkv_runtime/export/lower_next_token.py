"""From a multi-token prediction layer to an ExecuTorch program with the two methods of draft heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from agentkv_runtime.export.checks import check_bounds
from agentkv_runtime.export.lower import metadata_of, ready_to_trace
from agentkv_runtime.export.lower_draft import Fuse
from agentkv_runtime.export.program import LoweredProgram, lower_methods
from agentkv_runtime.export.progress import Progress
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.target import choose_target
from agentkv_runtime.folder.manifest import Quantization
from agentkv_runtime.hf.next_token import NextTokenModel, mixing
from agentkv_runtime.hf.wrapper import CachedForward

__all__ = ["lower_next_token"]


class _Level(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.cached = CachedForward(model)

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, hidden: torch.Tensor, logits_indices: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with mixing(hidden):
            logits, out = self.cached.run(tokens, position, logits_indices)
        assert out is not None, "the layer runs its head"
        return logits, out


def _trace(model: NextTokenModel, max_tokens: int, max_logits: int) -> dict[str, ExportedProgram]:
    rows, logits = Dim("T", min=1, max=max_tokens), Dim("N", min=1, max=max_logits)
    hidden = torch.zeros(2, model.config.hidden_size)
    fuse = torch.export.export(Fuse(model.target_norm), (hidden,), dynamic_shapes=({0: rows},), strict=False)
    del model.target_norm  # so that each method has its own weights only
    example = (torch.zeros(2, dtype=torch.int64), torch.arange(2), hidden, torch.zeros(2, dtype=torch.int64))
    forward = torch.export.export(
        _Level(model), example, dynamic_shapes=({0: rows}, {0: rows}, {0: rows}, {0: logits}), strict=False
    )
    return {"forward": forward, "fuse": fuse}


@torch.no_grad()
def lower_next_token(
    model: NextTokenModel,
    *,
    quant: Quantization = "none",
    max_tokens: int,
    max_logits: int,
    progress: Progress | None = None,
) -> LoweredProgram:
    """Lowers a float32 layer for the CPU backend; it cannot be used afterwards.

    `fuse` is the model's final norm, whose input are the features; `forward` takes 1 to `max_tokens` rows and returns 1
    to `max_logits` of them. Raises as `lower_model` does.
    """
    tell = progress or (lambda _: None)
    recipe = Recipe(quant)
    lowering = choose_target("cpu", quant, "fp32").lowering()
    check_bounds(max_tokens, max_logits)
    with ready_to_trace(model, recipe, lowering, "fp32", None, None, tell):  # type: ignore[arg-type]
        methods = _trace(model, max_tokens, max_logits)
    return lower_methods(methods, metadata_of(methods["forward"], model.config.model_type), lowering, tell)
