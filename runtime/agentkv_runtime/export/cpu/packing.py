"""XNNPACK's half of a program, a partition at a time: weights are loaded, packed, put on disk, and forgotten."""

from __future__ import annotations

import copy
from typing import final

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from agentkv_runtime.export.spill import spilled
from agentkv_runtime.hf.deferred import is_deferred, value

__all__ = ["StreamedXnnpack", "name_xnnpack"]


@final
class StreamedXnnpack(BackendDetails):  # type: ignore[misc]
    """XNNPACK's own lowering over deferred parameters. ExecuTorch finds it by its name, see `name_xnnpack`."""

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        """A copy whose tensors are the same objects: copying one would touch its memory."""
        del compile_specs
        tensors = (*edge_program.state_dict.values(), *edge_program.constants.values())
        shared = {id(tensor): tensor for tensor in tensors}
        copied: ExportedProgram = copy.deepcopy(edge_program, shared)
        return copied

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Packs one partition."""
        state = edge_program.state_dict
        for name, tensor in state.items():
            if isinstance(tensor, torch.Tensor) and is_deferred(tensor):
                state[name] = value(tensor)
        packed = XnnpackBackend.preprocess(edge_program, compile_specs)
        state.clear()
        if packed.data_store_output is not None:
            buffers = packed.data_store_output.buffers
            buffers[:] = [spilled(data) for data in buffers]
        return packed


def name_xnnpack(program: ExportedProgram) -> None:
    """Tells the delegates that `StreamedXnnpack` made the name under which the runtime knows them."""
    for module in program.graph_module.children():
        if isinstance(module, LoweredBackendModule) and module.backend_id == StreamedXnnpack.__name__:
            module._backend_id = XnnpackBackend.__name__
