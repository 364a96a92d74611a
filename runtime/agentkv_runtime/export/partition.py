"""Splits a program between our delegate (attention and what is fused to it) and XNNPACK (the rest)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch import fx
from torch._export.utils import get_buffer, get_param, is_buffer, is_param
from torch.export import ExportedProgram

from agentkv_runtime.export.region import ATTEND, ROW_OPS, RegionError, compile_region, is_view

__all__ = ["BACKEND_ID", "AgentKVCPU", "AgentKVPartitioner", "partitioners"]

BACKEND_ID = "AgentKVCPU"


def _constant(program: ExportedProgram, node: fx.Node) -> torch.Tensor | None:
    if is_buffer(program, node):
        return get_buffer(program, node)
    if is_param(program, node):
        return get_param(program, node)
    return None


def _region_of(attend: fx.Node) -> set[fx.Node]:
    """The attention node with the views, norms and ropes that lead to it alone, and the views that follow it."""
    region = {attend}
    pending = [arg for arg in attend.args[:3] if isinstance(arg, fx.Node)]
    while pending:
        node = pending.pop()
        if not (is_view(node) or node.target in ROW_OPS) or any(user not in region for user in node.users):
            continue
        if isinstance(node.args[0], fx.Node) and isinstance(node.args[0].meta["val"], torch.Tensor):
            region.add(node)
            pending.append(node.args[0])
    tail = attend
    while len(tail.users) == 1 and is_view(user := next(iter(tail.users))):
        region.add(user)
        tail = user
    return region


def _fits(program: ExportedProgram, region: set[fx.Node]) -> bool:
    nodes = [node for node in program.graph.nodes if node in region]
    inputs: dict[fx.Node, None] = {}
    for node in nodes:
        for arg in node.all_input_nodes:
            if arg not in region and _constant(program, arg) is None:
                inputs[arg] = None
    outputs = [node for node in nodes if any(user not in region for user in node.users)]
    try:
        compile_region(nodes, list(inputs), outputs, lambda node: _constant(program, node))
    except RegionError:
        return False
    return True


class AgentKVPartitioner(Partitioner):
    """Tags one region per attention layer, and one per other op of ours."""

    def __init__(self) -> None:
        super().__init__()
        self._xnnpack = XnnpackPartitioner()

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the regions. Raises RegionError when an attention node cannot be delegated even alone."""
        taken: set[fx.Node] = set()
        regions: list[set[fx.Node]] = []
        nodes = [node for node in exported_program.graph.nodes if node.op == "call_function"]
        for node in nodes:
            if node.target == ATTEND:
                region = _region_of(node)
                if not _fits(exported_program, region):
                    region = {node}
                regions.append(region)
                taken |= region
        regions += [{node} for node in nodes if node.target in ROW_OPS and node not in taken]
        spec = DelegationSpec(BACKEND_ID, [])
        tags = {}
        for index, region in enumerate(regions):
            tag = f"agentkv{index}"
            tags[tag] = spec
            for node in region:
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[fx.Node], bool] | None]:
        """XNNPACK's list: partitioners decompose one after another, and what one lets go is gone for the next."""
        ops: tuple[list[torch._ops.OpOverload], Callable[[fx.Node], bool] | None]
        ops = self._xnnpack.ops_to_not_decompose(ep)
        return ops


@final
class AgentKVCPU(BackendDetails):
    """Ahead-of-time half of the CPU delegate. ExecuTorch finds it by its name, which is the backend id."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Compiles a tagged region to the delegate's blob."""
        del compile_specs
        placeholders: list[fx.Node] = []
        nodes: list[fx.Node] = []
        outputs: list[Any] = []
        for node in edge_program.graph.nodes:
            if node.op == "placeholder":
                if _constant(edge_program, node) is None:
                    placeholders.append(node)
            elif node.op == "call_function":
                nodes.append(node)
            elif node.op == "output":
                outputs = list(node.args[0])
        program = compile_region(nodes, placeholders, outputs, lambda node: _constant(edge_program, node))
        return PreprocessResult(processed_bytes=program.pack())


def partitioners() -> list[Partitioner]:
    """Ours first, XNNPACK for what remains."""
    return [AgentKVPartitioner(), XnnpackPartitioner()]
