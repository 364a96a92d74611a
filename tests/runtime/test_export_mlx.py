"""Programs for MLX: one graph each, of the operations that they should be, and refusals that say where."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from typing import Any

import pytest
import torch
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export.lower import LoweredModel, lower_model
from agentkv_runtime.export.mlx.compile import compile_program
from agentkv_runtime.export.mlx.graph import Constant, Graph, Instruction, Opcode, TensorType
from agentkv_runtime.export.target import choose_target
from torch import nn

from tests.conformance.configs import CONFIGS
from tests.models import tiny_model, tiny_spec
from tests.rows import one_in
from tests.runtime.test_export_models import CONFIGS as ARCHITECTURES
from tests.runtime.test_export_models import build


def lowered(model: Any, **options: Any) -> LoweredModel:
    return lower_model(model, backend="mlx", max_tokens=16, max_logits=4, **options)


def graph_of(program: LoweredModel) -> Graph:
    module: Any = program.program.exported_program("forward").graph_module
    graph, weights = compile_program(module.lowered_module_0.original_module)
    assert [constant.key for constant in graph.constants] == list(weights)
    return graph


def counts(graph: Graph) -> Counter[str]:
    return Counter(instruction.opcode.name for instruction in graph.instructions)


@pytest.mark.parametrize(
    "name", one_in(4, ["llama-gqa2-d64", "qwen3-gqa4-d128-tied", "phi3-gqa4-d80", "gemma3-gqa2-d64-w8-tied"])
)
def test_a_program_is_one_delegate_and_a_layer_few_operations(name: str) -> None:
    kind, fields = CONFIGS[name]
    spec = tiny_spec(kind, **fields)
    program = lowered(tiny_model(spec))
    assert program.delegate_calls == {"AgentKVMLX": 1}
    metadata = program.metadata
    assert (metadata.n_layers, metadata.n_kv_heads, metadata.head_dim) == (2, spec.kv_heads, spec.head_dim)
    graph = graph_of(program)
    found = counts(graph)
    norms = {"gemma3": 6, "qwen3": 4}.get(kind, 2)
    fused = kind == "phi3"
    assert found["RMS_NORM"] == 2 * norms + 1
    assert found["LINEAR"] == 2 * (4 if fused else 7) + 1
    assert found["ROPE"] == 4
    assert found["UPDATE_AND_ATTEND"] == 2
    assert found["SILU"] + found["GELU_TANH"] == 2
    assert found["SLICE"] == (10 if fused else 0)
    assert not found.keys() & {"CAST", "POW", "RSQRT", "MEAN", "CONCAT", "BROADCAST"}
    windows = [i.ints[1] for i in graph.instructions if i.opcode is Opcode.UPDATE_AND_ATTEND]
    assert tuple(windows) == (metadata.windows or (0, 0))
    assert [kind.sizes for kind in graph.inputs] == [(-1,)] * 3
    assert [kind for _, kind in graph.outputs] == [TensorType(torch.float32, (-1, spec.vocab))]


@pytest.mark.parametrize(
    ("kind", "args", "ints", "floats"),
    one_in(
        3,
        [
            ("llama", {4}, {3}, {1}),  # as programs always were
            ("gemma2", {4}, {3}, {2}),  # caps
            ("gpt_oss", {6}, {3}, {1}),  # sink scores
            ("bloom", {6}, {3}, {1}),  # slopes
            ("llama4", {4}, {3, 5}, {1}),  # chunks
            ("gemma4", {4}, {3, 5}, {1}),  # another layer's keys and values
        ],
    ),
)
def test_attention_says_only_what_is_not_plain(kind: str, args: set[int], ints: set[int], floats: set[int]) -> None:
    graph = graph_of(lowered(tiny_model(tiny_spec(kind))))
    attends = [i for i in graph.instructions if i.opcode is Opcode.UPDATE_AND_ATTEND]
    assert {len(i.args) for i in attends} == args
    assert {len(i.ints) for i in attends} == ints
    assert {len(i.floats) for i in attends} == floats
    assert any(i.ints[4:] == (1,) for i in attends) == (kind == "gemma4")
    assert any(i.ints[3:4] == (8,) for i in attends) == (kind == "llama4")


@pytest.mark.parametrize(
    "name",
    one_in(
        6,
        [
            "phi3-long-rope",
            "olmo-layer-norm-without-weights",
            "gemma2-final-cap",
            "granite-scalings",
            "gpt-neox-partial-rope",
            "glm4-interleaved-partial-rope",
        ],
    ),
)
def test_norms_stay_whole_in_half_precision_and_frequencies_exact(name: str) -> None:
    program = lowered(build(ARCHITECTURES[name]()), dtype="fp16")
    assert program.delegate_calls == {"AgentKVMLX": 1}
    graph = graph_of(program)
    found = counts(graph)
    assert found["CAST"] == 1, "of the logits"
    assert found["ROPE"] > 0
    assert not found.keys() & {"POW", "RSQRT", "MEAN"}
    assert graph.outputs[0][1].dtype == torch.float32
    for constant in graph.constants:
        wanted = torch.float32 if constant.key.endswith("inv_freq") else torch.float16
        assert constant.type.dtype == wanted, constant.key


def test_features_are_float32_results_of_their_own() -> None:
    program = lowered(tiny_model(tiny_spec("llama")), dtype="bf16", features=True)
    assert program.features is not None
    graph = graph_of(program)
    assert [kind for _, kind in graph.outputs] == [
        TensorType(torch.float32, (-1, 384)),
        TensorType(torch.float32, (-1, 3 * 64)),
    ]
    assert counts(graph)["CAST"] == 2


@pytest.mark.parametrize(
    ("tied", "tables", "quant", "pieces"),
    one_in(2, [(True, 1, "none", 1), (False, 2, "none", 1), (True, 1, "affine4", 3), (False, 2, "affine4", 3)]),
)
def test_a_tied_table_is_there_once(tied: bool, tables: int, quant: Any, pieces: int) -> None:
    graph = graph_of(lowered(tiny_model(tiny_spec("llama", layers=1, tied=tied)), quant=quant))
    linears, norms, frequencies = 7, 2 + 1, 1
    assert len(graph.constants) == (linears + tables) * pieces + norms + frequencies


def test_quantised_layers_keep_their_biases() -> None:
    graph = graph_of(lowered(tiny_model(tiny_spec("qwen2")), quant="affine8"))
    linears = [i for i in graph.instructions if i.opcode is Opcode.AFFINE_LINEAR]
    assert [i.ints for i in linears] == [(64, 8)] * 15
    assert sum(i.args[4] >= 0 for i in linears) == 2 * 3
    assert counts(graph)["AFFINE_EMBEDDING"] == 1
    packed = {constant.type.dtype for constant in graph.constants if constant.key.endswith("packed")}
    assert packed == {torch.uint32}


class Mlp(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.function(x)
        return out


# What mixes rows is refused before any backend sees it, so it counts for nothing here.
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.cumsum(-1), r"does not compute aten\.cumsum\.default in model\.model\.layers\.0\.mlp \(Mlp\)"),
        (
            lambda x: x[:, -1:] * 0 + x,
            r"aten\.slice_copy\.Tensor in model\.model\.layers\.0\.mlp \(Mlp\).*from the end",
        ),
        (lambda x: x[:, :1].expand(-1, x.shape[1], -1) * 0 + x, r"aten\.expand_copy\.default in .* as the call has"),
        (lambda x: (x @ x.mT)[None].sum(-1)[0, ..., None] * 0 + x, "has several sizes that differ from call to call"),
    ],
)
def test_what_mlx_does_not_compute_is_refused_by_op_and_module(function: Any, message: str) -> None:
    model: Any = tiny_model(tiny_spec("llama", layers=1))
    model.model.layers[0].mlp = Mlp(function)
    with pytest.raises(UnsupportedModelError, match=message):
        lowered(model)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("metal", "none", "fp32"), "no backend 'metal': choose from cpu, mlx"),
        (("cpu", "affine4", "fp32"), "backend cpu has no quantisation 'affine4': choose from none, file, q4, q5"),
        (("mlx", "8da4w", "fp16"), "backend mlx has no quantisation '8da4w': choose from none, file, affine8, affine4"),
        (("cpu", "none", "fp16"), "backend cpu does not run in 'fp16': choose from fp32"),
    ],
)
def test_combinations_that_do_not_exist_are_refused(choice: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        choose_target(*choice)


def test_the_blob_is_what_the_delegate_reads() -> None:
    graph = Graph(
        inputs=[TensorType(torch.int64, (-1,))],
        constants=[Constant("w\u00e9", TensorType(torch.bfloat16, (8, 4)))],
        instructions=[Instruction(Opcode.EMBEDDING, (1, 0)), Instruction(Opcode.SCALAR, (), (0,), (0.5,))],
        outputs=[(2, TensorType(torch.bfloat16, (-1, 4)))],
    )
    blob = graph.pack()
    magic, version, size, checksum = struct.unpack_from("<4sIII", blob)
    payload = blob[16:]
    assert (magic, version, size, checksum) == (b"AKVG", 1, len(payload), zlib.crc32(payload))
    key = "w\u00e9".encode()
    assert payload == (
        struct.pack("<I IIq", 1, 1, 1, -1)
        + struct.pack(f"<I I{len(key)}s II2q", 1, len(key), key, 3, 2, 8, 4)
        + struct.pack("<I I I2i I I", 2, 3, 2, 1, 0, 0, 0)
        + struct.pack("<I I Iq Id", 12, 0, 1, 0, 1, 0.5)
        + struct.pack("<I I II2q", 1, 2, 3, 2, -1, 4)
    )
