"""Splits a program between our delegate (attention and what is fused to it) and XNNPACK (the rest)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch import fx
from torch._export.utils import get_buffer, get_param, is_buffer, is_param
from torch.export import ExportedProgram

from agentkv_runtime.backends import PROGRAM_BACKENDS
from agentkv_runtime.export.cpu.nodes import (
    ATTEND,
    BLOCK_LOOKUP,
    CONVOLVE,
    EXPERTS,
    GATE,
    LINEAR_ATTEND,
    LINEARS,
    PARAMETER,
    ROW_OPS,
    SCAN,
    gate_of,
    is_product,
    is_sum,
    is_view,
)
from agentkv_runtime.export.cpu.packing import StreamedXnnpack, copied, pack_weights
from agentkv_runtime.export.cpu.region import compile_region
from agentkv_runtime.export.cpu.strided import RegionError
from agentkv_runtime.export.decomposition import DecomposingPartitioner
from agentkv_runtime.export.delegates import computes_a_number
from agentkv_runtime.export.linear_table import note_linears
from agentkv_runtime.export.progress import Stage, reached
from agentkv_runtime.hf.deferred import is_deferred, is_taken, taken

__all__ = ["AgentKVCPU", "ProgramPartitioner", "merge_by_level"]

_OWN = ROW_OPS | EXPERTS | LINEARS | {BLOCK_LOOKUP, GATE, CONVOLVE, LINEAR_ATTEND, SCAN}
"""Ops beside attention that only this delegate computes."""


def _constant(program: ExportedProgram, node: fx.Node) -> torch.Tensor | None:
    if is_buffer(program, node):
        return get_buffer(program, node)
    if is_param(program, node):
        return get_param(program, node)
    return None


def _region_of(attend: fx.Node) -> set[fx.Node]:
    """The attention node, the views, norms and ropes that lead to it alone, and the views that follow it."""
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


def _with_views(nodes: Sequence[fx.Node], taken: set[fx.Node]) -> list[fx.Node]:
    """The nodes in `taken`, in order, and the views of floats that only these use."""
    taken = set(taken)
    for node in reversed(nodes):
        floats = is_view(node) and node.meta["val"].dtype is torch.float32
        if floats and node.users and all(user in taken for user in node.users):
            taken.add(node)
    return [node for node in nodes if node in taken]


def _mixtures(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Nodes of mixtures of experts after the routing, in order: expert layers, gates, their products and views."""
    return _with_views(
        nodes, {node for node in nodes if node.target in EXPERTS or node.target == GATE or gate_of(node)}
    )


def _around_attention(program: ExportedProgram, nodes: Sequence[fx.Node]) -> list[set[fx.Node]]:
    """A region for each attention, for each mixture of experts, and for every other op that only the delegate has."""
    regions: list[set[fx.Node]] = []
    for node in nodes:
        if node.target == ATTEND:
            region = _region_of(node)
            regions.append(region if _fits(program, region) else {node})
    taken = {node for region in regions for node in region}
    if any(node.target in EXPERTS for node in nodes):
        rest = [[node] for node in _mixtures(nodes) if node not in taken]
        mixtures = [set(part) for part in merge_by_level(nodes, regions, rest)]
        if all(_fits(program, region) for region in mixtures):
            regions += mixtures
            taken |= {node for region in mixtures for node in region}
    return regions + [{node} for node in nodes if node.target in _OWN and node not in taken]


def _around(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the sources of a node's inputs, seen through views, and the node's users."""
    for source in node.all_input_nodes:
        while is_view(source):
            source = source.all_input_nodes[0]
        yield source
    yield from node.users


def _decoder(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """All nodes that the delegate can compute in a program with its linear layers, in order."""
    ours = {node for node in nodes if node.target in _OWN or node.target == ATTEND or is_sum(node) or gate_of(node)}
    between = {node for node in nodes if is_product(node) and any(near in ours for near in _around(node))}
    return _with_views(nodes, ours | between)


def _our_regions(program: ExportedProgram, nodes: Sequence[fx.Node]) -> list[set[fx.Node]]:
    if any(node.target in LINEARS for node in nodes):
        regions = [set(part) for part in merge_by_level(nodes, [], [[node] for node in _decoder(nodes)])]
        if all(_fits(program, region) for region in regions):
            return regions
    return _around_attention(program, nodes)


def merge_by_level(
    nodes: Sequence[fx.Node], barriers: Sequence[set[fx.Node]], groups: Sequence[Sequence[fx.Node]]
) -> list[list[fx.Node]]:
    """Merges groups of nodes into the fewest partitions that no path leaves and enters again.

    A group's level is the largest number of times that a path to it has left such groups. Groups of one level can be
    one partition: a path from one to another through other nodes would have raised the level of the second.
    """
    unit: dict[fx.Node, int] = {}
    members = [*groups, *barriers]
    for index, member in enumerate(members):
        for node in member:
            if node.op == "call_function":
                unit[node] = index
    total = len(members)
    for node in nodes:
        if node not in unit:
            unit[node] = total
            total += 1
    level = [0] * total
    for _ in range(len(groups) + 1):
        changed = False
        for node in nodes:
            mine = unit[node]
            for source in node.all_input_nodes:
                theirs = unit.get(source)
                if theirs is None or theirs == mine:
                    continue
                needed = level[theirs] + int(theirs < len(groups) and mine >= len(groups))
                if needed > level[mine]:
                    level[mine] = needed
                    changed = True
        if not changed:
            break
    else:
        raise RegionError("a group of nodes depends on itself through others")
    partitions: dict[int, list[fx.Node]] = {}
    for index, group in enumerate(groups):
        partitions.setdefault(level[index], []).extend(group)
    return [partitions[key] for key in sorted(partitions)]


class ProgramPartitioner(DecomposingPartitioner):
    """Tags the regions of our delegate, and as few partitions of the other nodes as possible for XNNPACK.

    With quantised linear layers the delegate takes whole decoders, otherwise attention and the nodes that lead to it.

    One partitioner for both, as each further one would decompose and retrace the whole program twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._xnnpack = XnnpackPartitioner()

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the nodes of every partition with the backend that takes it."""
        reached(Stage.LOWERING, 0.4)
        # ExecuTorch would write and compile the whole graph's code once a partition, which nobody runs.
        exported_program.graph_module.recompile = lambda: None
        nodes = [node for node in exported_program.graph.nodes if node.op == "call_function"]
        ours = _our_regions(exported_program, nodes)
        taken = {node for region in ours for node in region}
        groups = [
            [node for node in group if node not in taken and not computes_a_number(node)]
            for group in self._xnnpack.get_matched_nodes_from_configs(exported_program)
        ]
        theirs = merge_by_level(nodes, ours, [group for group in groups if group])
        # No pass of XNNPACK's long list applies to these graphs but this one, and each retraces every partition.
        xnnpack = DelegationSpec(StreamedXnnpack.__name__, [CompileSpec("dqlinear_partitioner", b"")])
        tags: dict[str, DelegationSpec] = {}
        for prefix, spec, partitions in (
            ("agentkv", DelegationSpec(PROGRAM_BACKENDS["cpu"].backend_id, []), ours),
            ("xnnpack", xnnpack, theirs),
        ):
            for index, partition in enumerate(partitions):
                tag = f"{prefix}{index}"
                tags[tag] = spec
                for node in partition:
                    node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[fx.Node], bool] | None]:
        """Ops that XNNPACK takes whole: a decomposed linear would leave its quantised weights without a kernel."""
        return [
            torch.ops.aten.linear.default,
            torch.ops.torchao.choose_qparams_affine.default,
            torch.ops.torchao.quantize_affine.default,
            torch.ops.torchao.dequantize_affine.default,
        ], None


@final
class AgentKVCPU(BackendDetails):  # type: ignore[misc]
    """Ahead-of-time half of the CPU delegate. ExecuTorch finds it by its name, which is the backend id."""

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        """See `copied`."""
        del compile_specs
        return copied(edge_program)

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Compiles a tagged region to the delegate's blob, and packs its weights."""
        del compile_specs
        placeholders: list[fx.Node] = []
        nodes: list[fx.Node] = []
        outputs: list[Any] = []
        signature = edge_program.graph_signature
        parameters = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        for node in edge_program.graph.nodes:
            if node.op == "placeholder":
                node.meta[PARAMETER] = parameters.get(node.name, "")
                if _constant(edge_program, node) is None:
                    placeholders.append(node)
            elif node.op == "call_function":
                nodes.append(node)
            elif node.op == "output":
                outputs = list(node.args[0])
        program = compile_region(nodes, placeholders, outputs, lambda node: _constant(edge_program, node))
        weights = pack_weights(program.weights)
        note_linears(program)
        for zeros in edge_program.state_dict.values():
            if is_deferred(zeros) and not is_taken(zeros):
                taken(zeros)  # of symmetric codes, which the kernels do without
        return PreprocessResult(processed_bytes=program.pack(), data_store_output=weights)
