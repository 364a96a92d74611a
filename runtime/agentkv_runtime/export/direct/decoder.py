"""Families of decoders, and the instructions of their layers, written as regions of a program.

The `model_type` of transformers' config names the family. `tests/runtime/direct` compares the program of each, byte for
byte, with the one that tracing the same model gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.export.cpu.blob import Program, View
from agentkv_runtime.export.direct.region import Attention, Layer, Region, columns, heads
from agentkv_runtime.export.frequencies import Frequencies, rotary_frequencies
from agentkv_runtime.export.gates import Gate
from agentkv_runtime.folder.metadata import KvCacheMetadata, LayerShape
from agentkv_runtime.gguf.weights import RowBlocks

__all__ = ["EMBEDDING", "FAMILIES", "HEAD", "Decoder", "Family", "Weights"]

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
_GATED, _TOGETHER = ["gate", "up"], ["gate_up"]
_ALL, _NONE = "all layers", "no layer"  # that frequencies are of
_GATES = {"silu": Gate.SILU, "gelu_pytorch_tanh": Gate.TANH_GELU}


class Weights(Protocol):
    """Parameters by transformers' names. See `gguf.weights`, and `hf_folder`."""

    def names(self) -> Any:
        """Names of all parameters."""

    def blocks(self, name: str) -> RowBlocks | None:
        """A matrix in blocks, with rows in the order of the parameter's; None if it has no blocks."""

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Values of a parameter."""

    def errors(self) -> Mapping[str, float]:
        """Relative quantisation error, by layer name, of the weights whose rows were loaded."""


@dataclass(frozen=True)
class Family:
    """Differences between decoders of one family and Llama's."""

    norm_offset: float = 0.0
    """Term that is added to the weights of norms."""
    head_norms: bool = False
    """Whether queries and keys are normalised head by head before their rotation."""
    norms_after: bool = False
    """Whether results of attention and feed-forward layers are normalised before they are added to the residual."""
    all_at_once: bool = False
    """Whether queries, keys and values are all computed before the first is normalised."""
    fused: bool = False
    """Whether one layer computes queries, keys and values, and one gate and up unless the weights are separate."""
    gate: Gate = Gate.SILU
    """Gate of feed-forward layers, if the config names none."""
    scaled_embedding: bool = False
    """Whether rows of the embedding are multiplied by the square root of their width."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "seed_oss": Family(),
    "smollm3": Family(),
    "qwen3": Family(head_norms=True),
    "phi3": Family(fused=True),
    "gemma": Family(norm_offset=1.0, gate=Gate.TANH_GELU, scaled_embedding=True),
    "gemma3_text": Family(
        norm_offset=1.0,
        head_norms=True,
        norms_after=True,
        all_at_once=True,
        gate=Gate.TANH_GELU,
        scaled_embedding=True,
    ),
}
"""Families by transformers' `model_type`."""


class Decoder:
    """A decoder-only transformer of one family, with weights in blocks."""

    def __init__(self, config: Mapping[str, Any], weights: Weights, long: bool = False) -> None:
        """With `long`, long-rope models use their long factors.

        Raises UnsupportedModelError for models of no family, ValueError for invalid settings.
        """
        self.config, self._weights = config, weights
        family = FAMILIES.get(config["model_type"])
        if family is None:
            raise UnsupportedModelError(f"{config['model_type']} is of no family that is written without torch")
        self._family = family
        self._long = long
        self.hidden_size: int = config["hidden_size"]
        self.vocab_size: int = config["vocab_size"]
        self.n_layers: int = config["num_hidden_layers"]
        self._n_heads: int = config["num_attention_heads"]
        self._n_kv_heads: int = config["num_key_value_heads"]
        self._head_dim: int = config["head_dim"]
        self._eps: float = config["rms_norm_eps"]
        self._check()

    def _check(self) -> None:
        config = self.config
        asked = {
            "hidden_act": self._gate is not None,
            "attn_logit_softcapping": not config.get("attn_logit_softcapping"),
            "final_logit_softcapping": not config.get("final_logit_softcapping"),
            "rope_parameters": all(each is not None for each in self._tables.values()),
        }
        for name, known in asked.items():
            if not known:
                raise UnsupportedModelError(f"{name} of {config.get(name)!r} is not written without torch")

    @cached_property
    def metadata(self) -> KvCacheMetadata:
        """Shapes and windows of the layers, for a cache."""
        shape = LayerShape(self._n_kv_heads, self._head_dim, self._head_dim)
        return KvCacheMetadata.of_layers([shape] * self.n_layers, [self._window(i) for i in range(self.n_layers)])

    @cached_property
    def tied(self) -> bool:
        """Whether the head is the embedding."""
        return f"{HEAD}.weight" not in self._weights.names()

    @cached_property
    def layers(self) -> dict[str, RowBlocks]:
        """All weights in blocks, by layer name, in the order of the model's modules."""
        names = [EMBEDDING]
        for i in range(self.n_layers):
            names += [f"model.layers.{i}.{each}" for each in (*self._attention_names(), *self._mlp_names())]
        found = {name: self._blocks(name) for name in names}
        found[HEAD] = found[EMBEDDING] if self.tied else self._blocks(HEAD)
        return found

    def body(self) -> Program:
        """The program from tokens `[T]` and positions `[T]` to the rows that the head reads, `[1, T, H]`."""
        region = Region()
        tokens, position = region.integers(), region.integers()
        factor = round(float(np.float32(self.hidden_size**0.5)), 5) if self._family.scaled_embedding else 1.0
        hidden = region.lookup(tokens, self.layers[EMBEDDING], self.hidden_size, factor)
        tables = {name: region.rope_table(position, each) for name, each in self._tables.items() if each is not None}
        for i in range(self.n_layers):
            hidden = self._layer(region, i, hidden, position, tables)
        return region.finish(self._norm(region, "model.norm", hidden, in_place=True), 1)

    def head(self) -> Program:
        """The program from rows `[1, N, H]` to logits `[N, V]`."""
        region = Region()
        return region.finish(region.linear(region.floats(self.hidden_size), self._linear(HEAD)))

    def _layer(self, region: Region, i: int, hidden: View, position: int, tables: Mapping[str, View]) -> View:
        name, after = f"model.layers.{i}", self._family.norms_after
        rows = self._norm(region, f"{name}.input_layernorm", hidden)
        attended = self._attend(region, i, rows, position, tables)
        if after:
            attended = self._norm(region, f"{name}.post_attention_layernorm", attended, in_place=True)
        hidden = region.add(hidden, attended)
        before = "pre_feedforward_layernorm" if after else "post_attention_layernorm"
        fed = self._feed_forward(region, f"{name}.mlp", self._norm(region, f"{name}.{before}", hidden))
        if after:
            fed = self._norm(region, f"{name}.post_feedforward_layernorm", fed, in_place=True)
        return region.add(hidden, fed)

    def _attend(self, region: Region, i: int, rows: View, position: int, tables: Mapping[str, View]) -> View:
        name = f"model.layers.{i}.self_attn"
        q, k, v = self._queries(region, name, rows)
        table = tables.get(self._table_of(i))
        if table is not None:
            q, k = (region.rope(each, table, in_place=not self._family.fused) for each in (q, k))
        attention = Attention(i, self._scale, self._window(i))
        return region.linear(region.attend(attention, position, q, k, v), self._linear(f"{name}.o_proj"))

    def _queries(self, region: Region, name: str, rows: View) -> tuple[View, View, View]:
        """Queries, keys and values as heads."""
        n, n_kv, dim = self._n_heads, self._n_kv_heads, self._head_dim
        if self._family.fused:
            whole = region.linear(rows, self._linear(f"{name}.qkv_proj"))
            ends = (0, n * dim, (n + n_kv) * dim)
            q, k, v = (heads(columns(whole, at, h * dim), h) for at, h in zip(ends, (n, n_kv, n_kv), strict=True))
            return q, k, v
        parts = region.linears(rows, [self._linear(f"{name}.{each}_proj") for each in "qkv"])
        if self._family.all_at_once:
            for part in parts:
                part()
        found = []
        for part, n_heads, each in zip(parts, (n, n_kv, n_kv), "qkv", strict=True):
            x = heads(part(), n_heads)
            if self._family.head_norms and each != "v":
                x = self._norm(region, f"{name}.{each}_norm", x, in_place=True)
            found.append(x)
        return found[0], found[1], found[2]

    def _feed_forward(self, region: Region, name: str, rows: View) -> View:
        if self._gated_names == _TOGETHER:
            layers = _halves(self._linear(f"{name}.gate_up_proj"))
        else:
            layers = [self._linear(f"{name}.{each}_proj") for each in self._gated_names]
        gate, up = (part() for part in region.linears(rows, layers))
        assert self._gate is not None
        return region.linear(region.gated(gate, up, self._gate), self._linear(f"{name}.down_proj"))

    def _norm(self, region: Region, name: str, x: View, *, in_place: bool = False) -> View:
        return region.norm(x, partial(self._norm_weight, f"{name}.weight"), self._eps, in_place=in_place)

    def _norm_weight(self, name: str) -> npt.NDArray[np.float32]:
        weight = self._weights.floats(name)
        return weight + np.float32(self._family.norm_offset) if self._family.norm_offset else weight

    def _linear(self, name: str) -> Layer:
        bias = f"{name}.bias"
        numbers = partial(self._weights.floats, bias) if bias in self._weights.names() else None
        return Layer(self.layers[name], numbers, name)

    def _blocks(self, name: str) -> RowBlocks:
        blocks = self._weights.blocks(f"{name}.weight")
        if blocks is None:
            raise UnsupportedModelError(f"{name} has no blocks of its own")
        return blocks

    def _attention_names(self) -> list[str]:
        parts = ["qkv"] if self._family.fused else ["q", "k", "v"]
        return [f"self_attn.{each}_proj" for each in (*parts, "o")]

    def _mlp_names(self) -> list[str]:
        return [f"mlp.{each}_proj" for each in (*self._gated_names, "down")]

    @cached_property
    def _gated_names(self) -> list[str]:
        return _TOGETHER if f"model.layers.0.mlp.{_TOGETHER[0]}_proj.weight" in self._weights.names() else _GATED

    @cached_property
    def _gate(self) -> Gate | None:
        """Gate of feed-forward layers; None for one that the kernels lack."""
        named = self.config.get("hidden_activation") or self.config.get("hidden_act")
        return self._family.gate if named is None else _GATES.get(named)

    def errors(self) -> Mapping[str, float]:
        """Relative quantisation error of each layer's weight; complete once the program is written."""
        return self._weights.errors()

    @property
    def widest(self) -> int:
        """Upper bound of the width of rows between layers, in numbers."""
        return max(2 * max(each.shape[-1] for each in self.layers.values()), self.hidden_size)

    @property
    def _scale(self) -> float:
        return float((self.config.get("query_pre_attn_scalar") or self._head_dim) ** -0.5)

    def _layer_type(self, i: int) -> str:
        types = self.config.get("layer_types")
        return types[i] if types else "full_attention"

    def _window(self, i: int) -> int:
        if self.config.get("layer_types") is None or self._layer_type(i) == "sliding_attention":
            return self.config.get("sliding_window") or 0
        return 0

    @cached_property
    def _tables(self) -> dict[str, Frequencies | None]:
        """Rotary frequencies by layer type, or one entry for all layers."""
        parameters: dict[str, Any] = self.config["rope_parameters"]
        named = {name: each for name, each in parameters.items() if isinstance(each, dict)} or {_ALL: parameters}
        limit = self.config["max_position_embeddings"]
        return {name: rotary_frequencies(each, self._head_dim, limit, long=self._long) for name, each in named.items()}

    def _table_of(self, i: int) -> str:
        """Key of layer i in `_tables`, or `_NONE` for a layer without rotation."""
        turned = self.config.get("no_rope_layers")
        if turned and not turned[i]:
            return _NONE
        return self._layer_type(i) if self._layer_type(i) in self._tables else _ALL


def _halves(layer: Layer) -> list[Layer]:
    """The two layers, first and second half of the outputs, that a fused layer consists of."""
    outputs, inputs = layer.outputs // 2, layer.blocks.shape[1]
    found = []
    for half, part in ((slice(0, outputs), "gate"), (slice(outputs, 2 * outputs), "up")):
        rows = partial(_part, layer.blocks.rows, half)
        bias = None if layer.bias is None else partial(_part, layer.bias, half)
        name = layer.name.replace("gate_up", part)
        found.append(Layer(RowBlocks(layer.blocks.type, (outputs, inputs), rows), bias, name))
    return found


def _part(load: Callable[[], Any], part: slice) -> Any:
    return load()[part]
