"""From an EAGLE-3 head to an ExecuTorch program with two methods, `fuse` and `forward`."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.checks import check_bounds
from agentkv_runtime.export.draft_head import DraftHead
from agentkv_runtime.export.program import LoweredProgram, lower_methods
from agentkv_runtime.export.progress import Progress
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.target import choose_target
from agentkv_runtime.folder.manifest import Quantization
from agentkv_runtime.folder.metadata import KvCacheMetadata

__all__ = ["Fuse", "lower_draft_head"]


class Fuse(nn.Module):
    """The method that makes hidden states of features."""

    def __init__(self, fc: nn.Module) -> None:
        super().__init__()
        self.fc = fc

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """features `[T, F]` -> hidden `[T, H]`."""
        hidden: torch.Tensor = self.fc(features)
        return hidden


class _Level(nn.Module):
    """The head without the parts that only `fuse` uses, so that each method has its own weights only."""

    def __init__(self, head: DraftHead) -> None:
        super().__init__()
        self.head = head

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, hidden: torch.Tensor, logits_indices: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits, out = self.head(tokens, position, hidden, logits_indices)
        return logits, out


def _trace(head: DraftHead, max_tokens: int, max_logits: int) -> dict[str, ExportedProgram]:
    rows, logits = Dim("T", min=1, max=max_tokens), Dim("N", min=1, max=max_logits)
    fc, width = head.fc, head.config.hidden_size
    fuse = torch.export.export(Fuse(fc), (torch.zeros(2, head.feature_dim),), dynamic_shapes=({0: rows},), strict=False)
    del head.fc
    example = (
        torch.zeros(2, dtype=torch.int64),
        torch.arange(2),
        torch.zeros(2, width),
        torch.zeros(2, dtype=torch.int64),
    )
    forward = torch.export.export(
        _Level(head), example, dynamic_shapes=({0: rows}, {0: rows}, {0: rows}, {0: logits}), strict=False
    )
    head.fc = fc
    return {"forward": forward, "fuse": fuse}


@torch.no_grad()
def lower_draft_head(
    head: DraftHead, *, quant: Quantization = "none", max_tokens: int, max_logits: int, progress: Progress | None = None
) -> LoweredProgram:
    """Lowers a float32 head for the CPU backend. The head cannot be used afterwards.

    One forward takes 1 to `max_tokens` rows and returns 1 to `max_logits` of them. Raises QuantizationError, or
    ExportError for bounds below 2 and heads whose attention the cache does not support.
    """
    tell = progress or (lambda _: None)
    lowering = choose_target("cpu", quant, "fp32").lowering()
    check_bounds(max_tokens, max_logits)
    config = head.config
    if config.head_dim % 8 or config.head_dim > 256:
        raise ExportError(f"the head's head_dim {config.head_dim} is no multiple of 8 up to 256")
    head.eval()
    if quant != "none":
        tell(f"quantising to {quant}")
    lowering.prepare(head, Recipe(quant), "fp32")
    tell("tracing the head")
    methods = _trace(head, max_tokens, max_logits)
    return lower_methods(methods, KvCacheMetadata(1, config.num_key_value_heads, config.head_dim), lowering, tell)
