"""From traced methods to one ExecuTorch program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass
from torch.export import ExportedProgram

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.delegates import count_calls, refuse_lone_numbers, remember_outputs
from agentkv_runtime.export.progress import Progress, Stage, reached
from agentkv_runtime.export.retracing import retraced_once
from agentkv_runtime.export.target import Lowering
from agentkv_runtime.export.views import simplify_views
from agentkv_runtime.folder.metadata import KvCacheMetadata, write_kv_cache_metadata
from agentkv_runtime.hf.blame import first_line
from agentkv_runtime.hf.deferred import is_deferred, is_taken, taken

__all__ = ["LoweredProgram", "lower_methods"]


@dataclass(frozen=True)
class LoweredProgram:
    """A lowered program."""

    program: ExecutorchProgramManager
    metadata: KvCacheMetadata
    delegate_calls: dict[str, int]
    """Number of calls of one `forward` to each backend."""

    @property
    def buffer(self) -> bytes:
        """The .pte as bytes."""
        return bytes(self.program.buffer)

    def write(self, path: str | Path) -> None:
        """Writes the .pte."""
        with open(path, "wb") as file:
            self.program.write_to_file(file)


def _load_rest(program: ExportedProgram) -> None:
    """Loads the deferred parameters that no delegate has taken."""
    for name, tensor in program.state_dict.items():
        if is_deferred(tensor):
            program.state_dict[name] = taken(tensor)


def _awaited(program: ExportedProgram) -> dict[str, Any]:
    """Deferred parameters that a traced method uses, by name."""
    names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    used = {names[node.name] for node in program.graph.nodes if node.name in names and node.users}
    return {name: tensor for name, tensor in program.state_dict.items() if name in used and is_deferred(tensor)}


def lower_methods(
    methods: Mapping[str, ExportedProgram], metadata: KvCacheMetadata, lowering: Lowering, tell: Progress
) -> LoweredProgram:
    """Lowers traced methods, one of them `forward`, for one backend; `metadata` goes into the program.

    Raises ExportError for ops that the backend or ExecuTorch cannot lower.
    """
    try:
        return _lowered(methods, metadata, lowering, tell)
    except ExportError:
        raise
    except Exception as error:  # ExecuTorch's passes raise many kinds
        raise ExportError(f"the program cannot be lowered to {lowering.title}: {first_line(error)}") from error


def _lowered(
    methods: Mapping[str, ExportedProgram], metadata: KvCacheMetadata, lowering: Lowering, tell: Progress
) -> LoweredProgram:
    awaited = {name: each for program in methods.values() for name, each in _awaited(program).items()}
    tell("lowering the program")
    reached(Stage.LOWERING)
    with retraced_once():
        edge = to_edge_transform_and_lower(
            dict(methods),
            transform_passes=[*lowering.passes, simplify_views],
            partitioner=[lowering.partitioner()],
            constant_methods=write_kv_cache_metadata(
                n_layers=metadata.n_layers,
                n_kv_heads=metadata.n_kv_heads,
                head_dim=metadata.head_dim,
                windows=metadata.windows,
                shapes=metadata.shapes,
            ),
            compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        )
    for name in methods:
        lowering.finish(edge.exported_program(name))
        _load_rest(edge.exported_program(name))
        refuse_lone_numbers(edge.exported_program(name))
        remember_outputs(edge.exported_program(name))
    empty = [name for name, each in awaited.items() if not is_taken(each)]
    if empty:  # ExecuTorch copied them on the way, and packed memory that nobody has written to
        raise ExportError(f"{len(empty)} weights were lost while the program was lowered ({', '.join(empty[:3])})")
    calls = count_calls(edge.exported_program("forward"))
    tell("planning memory")
    reached(Stage.PLANNING)
    # The runner owns inputs and outputs: no copies, and none of the planned memory goes to their upper bounds.
    program = edge.to_executorch(
        ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
        )
    )
    return LoweredProgram(program, metadata, calls)
