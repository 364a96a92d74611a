"""Packing of a program's weights: loads, packs, spills to disk and drops them, for XNNPACK a partition at a time."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from agentkv_runtime._core import pack_blocks, pack_floats, pack_linear
from agentkv_runtime.export.cpu.blob_weights import Blocks, Weight
from agentkv_runtime.export.progress import Stage, reached
from agentkv_runtime.export.spill import spilled
from agentkv_runtime.hf.deferred import is_deferred, taken

__all__ = ["StreamedXnnpack", "copied", "name_xnnpack", "pack_weights"]

_PAGE = 4096
"""Alignment of weights, so that the program's file can be mapped."""


def copied(program: ExportedProgram) -> ExportedProgram:
    """A copy whose tensors are the same objects: copying one would touch its memory."""
    tensors = (*program.state_dict.values(), *program.constants.values())
    copy_: ExportedProgram = copy.deepcopy(program, {id(tensor): tensor for tensor in tensors})
    return copy_


def _packed(weight: Weight | Blocks) -> bytes:
    if isinstance(weight, Blocks):
        rows = torch.cat([taken(part).detach() for part in weight.parts]).numpy()
        if rows.ndim == 2:
            return pack_blocks(rows, weight.type)
        return b"".join(pack_blocks(expert, weight.type) for expert in rows)
    parts = [torch.cat([taken(tensor).detach() for tensor in tensors]) for tensors in zip(*weight.parts, strict=True)]
    if weight.bits == 32:
        return b"".join(pack_floats(expert.float().numpy()) for expert in parts[0])
    experts = zip(*(part.numpy() if part.dim() == 3 else part.unsqueeze(0).numpy() for part in parts), strict=True)
    packed = [pack_linear(codes, scales, weight.bits) for codes, scales in experts]
    return packed[0] if len(packed) == 1 else b"".join(packed)


def _digest(weight: Weight | Blocks, data: bytes) -> str:
    digest = hashlib.sha256(data)
    if isinstance(weight, Blocks):  # those of zeros are equal bytes in whatever shape
        digest.update(str((weight.type, [tuple(part.shape) for part in weight.parts])).encode())
    return digest.hexdigest()


def pack_weights(weights: list[Weight | Blocks]) -> NamedDataStoreOutput:
    """Packs the weights of linear layers one by one; their names are digests of their bytes."""
    store = NamedDataStore()
    for number, weight in enumerate(weights):
        reached(Stage.LOWERING, 0.4 + 0.3 * number / len(weights))
        data = _packed(weight)
        weight.name = f"linear_{_digest(weight, data)}"
        store.add_named_data(weight.name, spilled(data), alignment=_PAGE)
    return store.get_named_data_store_output()


class _NoPasses:
    """Replaces XNNPACK's pass manager; runs no passes."""

    def __init__(self, program: ExportedProgram, passes: object) -> None:
        self._program = program

    def transform(self) -> ExportedProgram:
        return self._program


@contextmanager
def _passes_if_needed(program: ExportedProgram) -> Iterator[None]:
    """Has XNNPACK's passes run in the block only for programs with a matrix product that is no linear layer.

    They would only retrace others.
    """
    manager = xnnpack_preprocess.XNNPACKPassManager
    if not any(node.target in ConvertToLinearPass.targets for node in program.graph.nodes):
        xnnpack_preprocess.XNNPACKPassManager = _NoPasses
    try:
        yield
    finally:
        xnnpack_preprocess.XNNPACKPassManager = manager


@final
class StreamedXnnpack(BackendDetails):  # type: ignore[misc]
    """XNNPACK's own lowering over deferred parameters. ExecuTorch finds it by its name, see `name_xnnpack`."""

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        """See `copied`."""
        del compile_specs
        return copied(edge_program)

    @classmethod
    def preprocess_multimethod(
        cls, edge_programs: dict[str, list[ExportedProgram]], compile_specs: dict[str, list[list[CompileSpec]]]
    ) -> dict[str, list[PreprocessResult]]:
        """Packs the partitions of each method, one after another."""
        packed: dict[str, list[PreprocessResult]] = {}
        total, ready = sum(len(programs) for programs in edge_programs.values()), 0
        for name, programs in edge_programs.items():
            packed[name] = []
            for program, specs in zip(programs, compile_specs[name], strict=True):
                packed[name].append(cls.preprocess(program, specs))
                ready += 1
                reached(Stage.LOWERING, 0.7 + 0.3 * ready / total)
        return packed

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Packs one partition."""
        state = edge_program.state_dict
        for name, tensor in state.items():
            if isinstance(tensor, torch.Tensor) and is_deferred(tensor):
                state[name] = taken(tensor)
        with _passes_if_needed(edge_program):
            packed = XnnpackBackend.preprocess(edge_program, compile_specs)
        state.clear()
        if packed.data_store_output is not None:
            buffers = packed.data_store_output.buffers
            buffers[:] = [spilled(data) for data in buffers]
        return packed


def name_xnnpack(program: ExportedProgram) -> None:
    """Renames the delegates of `StreamedXnnpack` to the backend's name in the runtime."""
    for module in program.graph_module.children():
        if isinstance(module, LoweredBackendModule) and module.backend_id == StreamedXnnpack.__name__:
            module._backend_id = XnnpackBackend.__name__
