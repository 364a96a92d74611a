"""What a program can be exported for: each backend's name, what it offers, and where its lowering is.

Choosing among them needs no torch; a lowering does.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from agentkv_runtime.errors import ExportError
from agentkv_runtime.manifest import DType, Quantization

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch import nn

__all__ = ["TARGETS", "Lowering", "Target", "choose_target"]


class Lowering(Protocol):
    """What exporting asks of a backend."""

    title: str
    """What a program is lowered to; for people."""

    def prepare(self, model: nn.Module, quant: Quantization, dtype: DType) -> None:
        """Rewrites a float32 model, or draft head, in place into one that traces to what the backend lowers.

        Raises QuantizationError naming a layer that does not fit the quantisation.
        """
        ...

    def partitioner(self) -> Partitioner:
        """Divides a traced program among delegates. Raises UnsupportedModelError for ops that the backend lacks."""
        ...


@dataclass(frozen=True)
class Target:
    """A backend as `agentkv export` offers it."""

    name: str
    """In manifests and on the command line."""
    quantizations: tuple[Quantization, ...]
    dtypes: tuple[DType, ...]
    module: str
    """The module whose `LOWERING` does the work."""

    def lowering(self) -> Lowering:
        """The backend's lowering, imported now."""
        lowering: Lowering = import_module(self.module).LOWERING
        return lowering


TARGETS = {
    target.name: target
    for target in (
        Target("cpu", ("none", "8da8w", "8da4w"), ("fp32",), "agentkv_runtime.export.cpu.lowering"),
        Target("mlx", ("none", "affine8", "affine4"), ("fp32", "fp16", "bf16"), "agentkv_runtime.export.mlx.lowering"),
    )
}


def choose_target(backend: str, quant: str, dtype: str) -> Target:
    """The target of a name. Raises ExportError, saying what there is, for one that does not offer the combination."""
    target = TARGETS.get(backend)
    if target is None:
        raise ExportError(f"there is no backend {backend!r}: choose from {', '.join(TARGETS)}")
    if quant not in target.quantizations:
        offered = ", ".join(target.quantizations)
        raise ExportError(f"backend {backend} has no quantisation {quant!r}: choose from {offered}")
    if dtype not in target.dtypes:
        raise ExportError(f"backend {backend} does not run in {dtype!r}: choose from {', '.join(target.dtypes)}")
    return target
