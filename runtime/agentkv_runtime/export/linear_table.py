"""Which linear layers of the model each weight of a program holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentkv_runtime.export.cpu.blob import Linear, Program
from agentkv_runtime.folder.manifest import LinearLayers

__all__ = ["linear_table", "note_linears", "noting_linears"]

_ROOT = "model."  # under which a traced program has the model
_noted: ContextVar[list[Program] | None] = ContextVar("noted", default=None)


def linear_table(regions: Iterable[Program]) -> dict[str, LinearLayers]:
    """The linear layers of a program's regions, by the names of their packed weights."""
    found: dict[str, LinearLayers] = {}
    for region in regions:
        for each in region.instructions:
            if not isinstance(each, Linear):
                continue
            weight, others = each.weight, found.get(each.weight.name)
            layers = (*(others.layers if others else ()), *weight.layers)
            found[weight.name] = LinearLayers(inputs=each.src.dim, layers=layers, shared=others is not None)
    return found


@contextmanager
def noting_linears() -> Iterator[dict[str, LinearLayers]]:
    """Fills the dict with the linear layers of the programs that are lowered in the block, as it ends."""
    programs: list[Program] = []
    table: dict[str, LinearLayers] = {}
    token = _noted.set(programs)
    try:
        yield table
    finally:
        _noted.reset(token)
    for name, each in linear_table(programs).items():
        layers = tuple((layer.removeprefix(_ROOT), outputs) for layer, outputs in each.layers)
        table[name] = each.model_copy(update={"layers": layers})


def note_linears(program: Program) -> None:
    """Notes the linear layers of a region whose weights are packed, for `noting_linears`."""
    if (programs := _noted.get()) is not None:
        programs.append(program)
