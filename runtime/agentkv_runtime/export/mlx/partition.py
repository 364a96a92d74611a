"""The whole program as one partition of the MLX delegate, its weights as named data."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch import fx
from torch.export import ExportedProgram

from agentkv_runtime.backends import PROGRAM_BACKENDS
from agentkv_runtime.export.decomposition import DecomposingPartitioner
from agentkv_runtime.export.mlx.compile import check_ops, compile_program

__all__ = ["AgentKVMLX", "WholeProgramPartitioner"]


_PAGE = 16384  # of the largest pages that MLX's machines have: such weights need no copy
_LARGE, _ALIGNMENT = 65536, 64


class WholeProgramPartitioner(DecomposingPartitioner):
    """Tags every node for the delegate, or refuses the program."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags all nodes with one partition. Raises UnsupportedModelError naming an op that MLX lacks."""
        check_ops(exported_program)
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "program"
        tag_constant_data(exported_program)
        return PartitionResult(
            tagged_exported_program=exported_program,
            partition_tags={"program": DelegationSpec(PROGRAM_BACKENDS["mlx"].backend_id, [])},
        )

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[fx.Node], bool] | None]:
        """Ops that MLX computes in one operation."""
        aten = torch.ops.aten
        return [
            aten.linear.default,
            aten.matmul.default,
            aten.embedding.default,
            aten.silu.default,
            aten.gelu.default,
            aten.softmax.int,
            aten.layer_norm.default,
            aten.index_select.default,
        ], None


@final
class AgentKVMLX(BackendDetails):  # type: ignore[misc]
    """Ahead-of-time half of the MLX delegate. ExecuTorch finds it by its name, which is the backend id."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Compiles a program to the delegate's graph and hands its weights to ExecuTorch."""
        del compile_specs
        graph, weights = compile_program(edge_program)
        store = NamedDataStore()
        for key, tensor in weights.items():
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            store.add_named_data(key, data, alignment=_PAGE if len(data) >= _LARGE else _ALIGNMENT)
        return PreprocessResult(processed_bytes=graph.pack(), data_store_output=store.get_named_data_store_output())
