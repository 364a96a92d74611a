"""How programs are split: regions compile to few instructions over views, and partitions are few and acyclic."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from agentkv_runtime.export.cpu.blob import (
    Buffer,
    Copy,
    DType,
    Extent,
    Place,
    Program,
    RmsNorm,
    Rope,
    UpdateAndAttend,
    View,
)
from agentkv_runtime.export.cpu.partition import merge_by_level
from agentkv_runtime.export.cpu.region import compile_region
from agentkv_runtime.export.cpu.strided import RegionError
from agentkv_runtime.export.views import simplify_views
from torch import fx


def graph_of(edges: dict[str, list[str]]) -> dict[str, fx.Node]:
    """A graph of calls, each named and given its inputs, in order."""
    graph, nodes = fx.Graph(), {}
    for name, inputs in edges.items():
        nodes[name] = graph.call_function(sum, tuple(nodes[i] for i in inputs), name=name)
    return nodes


def merged(edges: dict[str, list[str]], groups: list[str], barriers: list[str]) -> list[str]:
    nodes = graph_of(edges)
    parts = merge_by_level(
        list(nodes.values()), [{nodes[n] for n in b} for b in barriers], [[nodes[n] for n in g] for g in groups]
    )
    return ["".join(sorted(node.name for node in part)) for part in parts]


def test_what_a_barrier_separates_stays_apart() -> None:
    # a -> X -> b with a residual a -> b, and c beside them.
    edges = {"a": [], "x": ["a"], "c": [], "b": ["x", "a"], "d": ["b", "c"]}
    assert merged(edges, ["a", "b", "c", "d"], ["x"]) == ["ac", "bd"]


def test_without_barriers_all_is_one_partition() -> None:
    edges = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    assert merged(edges, ["a", "b", "c", "d"], []) == ["abcd"]


def test_nodes_that_nobody_takes_separate_too() -> None:
    edges = {"a": [], "u": ["a"], "b": ["u"], "c": ["a"]}
    assert merged(edges, ["a", "b", "c"], []) == ["ac", "b"]


def test_a_group_with_members_before_and_after_a_barrier_is_refused() -> None:
    edges = {"a": [], "x": ["a"], "b": ["x"]}
    with pytest.raises(RegionError, match="depends on itself"):
        merged(edges, ["ab"], ["x"])


class Attention(torch.nn.Module):
    """Query and key norms, ropes and attention as exported models have them."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.weight = torch.nn.Buffer(torch.ones(16))

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        ops = torch.ops.agentkv
        if self.fused:
            q, k, v = q[..., :64], q[..., 64:96], q[..., 96:]
        t = q.shape[1]
        heads = [x.view(1, t, -1, 16) for x in (q, k, v)]
        q4, k4 = (ops.rms_norm(x, self.weight, 1e-6).transpose(1, 2) for x in heads[:2])
        out = ops.update_and_attend(
            ops.rope(q4, table, False), ops.rope(k4, table, False), heads[2].transpose(1, 2), position, 3, 0.25,
            torch.float32, 7,
        )  # fmt: skip
        return out.transpose(1, 2).reshape(1, t, -1)


def compiled(fused: bool) -> Program:
    from executorch.exir import EdgeCompileConfig, to_edge

    t = torch.export.Dim("T", min=1, max=64)
    width = 128 if fused else 64
    args = (
        torch.zeros(1, 4, width), torch.zeros(1, 4, 32), torch.zeros(1, 4, 32), torch.zeros(4, 16),
        torch.arange(4),
    )  # fmt: skip
    shapes = ({1: t}, {1: t}, {1: t}, {0: t}, {0: t})
    exported = torch.export.export(Attention(fused), args, dynamic_shapes=shapes, strict=False)
    program = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True))
    program = program.transform([simplify_views]).exported_program()
    nodes = list(program.graph.nodes)
    calls = [n for n in nodes if n.op == "call_function"]
    constants = set(program.graph_signature.inputs_to_buffers)
    inputs = [n for n in nodes if n.op == "placeholder" and n.name not in constants and n.users]
    outputs: Any = nodes[-1].args[0]
    return compile_region(calls, inputs, list(outputs), lambda n: torch.ones(16) if n.name in constants else None)


@pytest.mark.parametrize("fused", [False, True])
def test_an_attention_layer_is_five_instructions_and_no_copy(fused: bool) -> None:
    program = compiled(fused)
    kinds = [type(instruction) for instruction in program.instructions]
    assert sorted(kind.__name__ for kind in kinds) == ["RmsNorm", "RmsNorm", "Rope", "Rope", "UpdateAndAttend"]
    attend = program.instructions[-1]
    assert isinstance(attend, UpdateAndAttend)
    assert (attend.layer_id, attend.window, attend.scale) == (3, 7, 0.25)
    # v is read where the projection left it, and the result is written where the next one reads it.
    assert attend.v.buffer.place is Place.INPUT
    assert (attend.v.heads, attend.v.head_stride, attend.v.token_stride) == (
        2,
        Extent(16, 0),
        Extent(128 if fused else 32, 0),
    )
    assert attend.v.offset == Extent(96 if fused else 0, 0)
    assert attend.dst.buffer.place is Place.OUTPUT
    assert (attend.dst.head_stride, attend.dst.token_stride) == (Extent(16, 0), Extent(64, 0))
    ropes = [i for i in program.instructions if isinstance(i, Rope)]
    assert all(i.src == i.dst for i in ropes), "turned in place"
    assert sorted(program.temps) == [32, 64]
    assert not any(isinstance(i, Copy) for i in program.instructions)
    assert any(isinstance(i, RmsNorm) and i.eps == 1e-6 for i in program.instructions)


def test_the_blob_says_its_size_and_checksum() -> None:
    program = Program(
        inputs=[(DType.FLOAT32, (Extent(0, 1), Extent(8, 0)))],
        outputs=[(DType.FLOAT32, (Extent(0, 1), Extent(8, 0)))],
        instructions=[
            Copy(*(View(Buffer(place, 0), 1, 8, Extent(0, 0), Extent(0, 0), Extent(8, 0)) for place in (0, 1)))  # type: ignore[arg-type]
        ],
    )
    blob = program.pack()
    magic, version, size, _ = struct.unpack_from("<4sIII", blob)
    assert (magic, version, size) == (b"AKVD", 1, len(blob) - 16)
