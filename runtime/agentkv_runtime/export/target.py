"""Interface between export and its backends, and the choice of one. Choosing needs no torch; lowering does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeAlias

from agentkv_runtime.backends import PROGRAM_BACKENDS
from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.manifest import DType, Quantization

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch import fx, nn
    from torch.export import ExportedProgram
    from torch.fx.passes.infra.pass_base import PassResult

    from agentkv_runtime.export.quantization import Recipe

__all__ = ["Lowering", "Passes", "Target", "choose_target", "runs_blocks", "usual_quantization"]

Passes: TypeAlias = "Sequence[Callable[[fx.GraphModule], PassResult]]"


class Lowering(Protocol):
    """A backend's part in an export."""

    title: str
    """Name of the format that programs are lowered to, for people."""
    passes: Passes
    """Passes that rewrite the edge graph before it is partitioned."""

    def prepare(self, model: nn.Module, recipe: Recipe, dtype: DType) -> None:
        """Rewrites a float32 model, or draft head, in place into one that traces to what the backend lowers.

        Raises QuantizationError naming a layer that does not fit the quantisation.
        """
        ...

    def partitioner(self) -> Partitioner:
        """Divides a traced program among delegates. Raises UnsupportedModelError for ops that the backend lacks."""
        ...

    def finish(self, program: ExportedProgram) -> None:
        """Post-processes the delegates of a lowered method."""
        ...


@dataclass(frozen=True)
class Target:
    """A backend to export for, implemented by the package of its name beside this file."""

    name: str

    def lowering(self) -> Lowering:
        """The backend's lowering, imported now."""
        lowering: Lowering = import_module(f"agentkv_runtime.export.{self.name}.lowering").LOWERING
        return lowering


def usual_quantization(backend: str, own_bits: bool) -> Quantization:
    """Default quantisation: "file" if the source has blocks (`own_bits`) that the backend runs, else the backend's."""
    if own_bits and runs_blocks(backend):
        return "file"
    return PROGRAM_BACKENDS[backend].usual[0] if backend in PROGRAM_BACKENDS else "none"


def runs_blocks(backend: str) -> bool:
    """Whether the backend runs GGUF files in their own blocks."""
    return backend in PROGRAM_BACKENDS and "file" in PROGRAM_BACKENDS[backend].quantizations


def choose_target(backend: str, quant: str, dtype: str) -> Target:
    """The target of this name. Raises ExportError, listing what there is, for a combination it does not offer."""
    offered = PROGRAM_BACKENDS.get(backend)
    if offered is None:
        raise ExportError(f"there is no backend {backend!r}: choose from {', '.join(PROGRAM_BACKENDS)}")
    if quant not in offered.quantizations:
        choices = ", ".join(offered.quantizations)
        raise ExportError(f"backend {backend} has no quantisation {quant!r}: choose from {choices}")
    if dtype not in offered.dtypes:
        raise ExportError(f"backend {backend} does not run in {dtype!r}: choose from {', '.join(offered.dtypes)}")
    return Target(backend)
