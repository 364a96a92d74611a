"""The weights of a Hugging Face folder, quantised while a program is written. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import ExportError, QuantizationError, UnsupportedModelError
from agentkv_runtime.export.blocks.fixed import usual_cost
from agentkv_runtime.export.blocks.recipe import Candidate, plan_kinds
from agentkv_runtime.export.blocks.rows import TYPE_IDS, Floats, quantize_rows
from agentkv_runtime.export.direct.decoder import EMBEDDING, FAMILIES, HEAD, Family
from agentkv_runtime.export.made import EMBEDDING_TITLE
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.gguf.weights import RowBlocks
from agentkv_runtime.hf.plain_config import PlainConfig
from agentkv_runtime.hf.tensors import DTYPES, Tensor, open_tensors

__all__ = ["QuantizedWeights"]

Shapes = dict[str, tuple[int, ...]]

_QKV, _GATED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")
_OUT, _DOWN = ("self_attn.o_proj",), ("mlp.down_proj",)
_ATTENTION_BIAS: dict[str, tuple[str, ...]] = {"attention_bias": (*_QKV, *_OUT)}
_MLP_BIAS: dict[str, tuple[str, ...]] = {"mlp_bias": (*_GATED, *_DOWN)}
_BIASES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "llama": _ATTENTION_BIAS | _MLP_BIAS,
    "qwen2": {"model_type": _QKV},  # always
    "qwen3": _ATTENTION_BIAS,
    "seed_oss": {"attention_bias": _QKV, "attention_out_bias": _OUT, **_MLP_BIAS},
    "smollm3": _ATTENTION_BIAS | _MLP_BIAS,
    "gemma": _ATTENTION_BIAS,
    "gemma3_text": _ATTENTION_BIAS,
}
"""Layers that have biases, by model type and by the setting that turns them on."""
_OF_NO_USE = "rotary_emb.inv_freq"  # in older files: it follows from the config
_COMPARED = 1 << 20  # numbers at a time


class QuantizedWeights:
    """Parameters of a folder's model, read and quantised into the planned kinds of blocks on every use."""

    def __init__(self, folder: Path, config: PlainConfig, quant: str) -> None:
        """Reads only the files' headers.

        Raises UnsupportedModelError for weights that differ from the family's, and ExportError for files that are
        damaged, lack weights, or do not fit the config.
        """
        self._folder, self._quant = folder, quant
        stored = _shapes(config, FAMILIES[config["model_type"]])
        self._tensors = _halved(stored, _checked(folder, config, stored))
        self._shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._losses: dict[str, _Loss] = {}

    def names(self) -> Collection[str]:
        """Names of all parameters; of tied ones the first."""
        return self._shapes.keys()

    def floats(self, name: str) -> Floats:
        """Values of a parameter. Raises ExportError for values that are not finite."""
        return self._tensors[name].floats()

    def blocks(self, name: str) -> RowBlocks | None:
        """A matrix in blocks, quantised when its rows are loaded; None for other parameters."""
        shape = self._shapes[name]
        if len(shape) != 2:
            return None
        layer = _layer(name)
        kind = TYPE_IDS[self._kinds[layer]]
        loss = self._losses.setdefault(layer, _Loss())
        return RowBlocks(kind, shape, partial(_Rows, self._tensors[name], self._kinds[layer], loss))

    def errors(self) -> dict[str, float]:
        """Relative quantisation error of each layer's weight, over the rows quantised so far."""
        return {layer: loss.error for layer, loss in self._losses.items()}

    @cached_property
    def _kinds(self) -> dict[str, str]:
        head = HEAD if f"{HEAD}.weight" in self._shapes else EMBEDDING_TITLE
        candidates = {}
        for name, shape in self._shapes.items():
            if len(shape) != 2:
                continue
            layer = _layer(name)
            candidates[layer] = Candidate(
                shape=(shape[0], shape[1]),
                numbers=partial(self._tensors.__getitem__, name),
                is_head=layer == head,
                counts=usual_cost(HEAD if layer == head else layer, shape[0]),
            )
        try:
            return plan_kinds(candidates, self._quant)
        except QuantizationError as error:
            raise QuantizationError(f"{self._folder}: {error}") from error


@dataclass
class _Loss:
    lost: float = 0.0
    whole: float = 0.0

    @property
    def error(self) -> float:
        return float((self.lost / self.whole) ** 0.5) if self.whole else 0.0


@dataclass
class _Rows:
    """Rows that are quantised when sliced. Take each row once, as every slice adds to `loss`."""

    tensor: Tensor
    kind: str
    loss: _Loss

    def __len__(self) -> int:
        return self.tensor.shape[0]

    def __getitem__(self, part: slice) -> npt.NDArray[np.uint8]:
        try:
            made = quantize_rows(self.tensor[part], self.kind)
        except QuantizationError as error:
            raise QuantizationError(f"{self.tensor.path}: {printable(self.tensor.name)}: {error}") from error
        self.loss.lost += made.lost
        self.loss.whole += made.whole
        return made.rows


def _layer(name: str) -> str:
    layer = name.removesuffix(".weight")
    return EMBEDDING_TITLE if layer == EMBEDDING else layer


def _shapes(config: PlainConfig, family: Family) -> Shapes:
    """Shapes of all parameters, in the order of the model's modules."""
    hidden = config["hidden_size"]
    found: Shapes = {f"{EMBEDDING}.weight": (config["vocab_size"], hidden)}
    biased = {
        layer
        for setting, layers in _BIASES.get(config["model_type"], {}).items()
        for layer in layers
        if config[setting]
    }
    for i in range(config["num_hidden_layers"]):
        for layer, shape in _matrices(config, family).items():
            found[f"model.layers.{i}.{layer}.weight"] = shape
            if layer in biased:
                found[f"model.layers.{i}.{layer}.bias"] = shape[:1]
        for norm, width in _norms(config, family):
            found[f"model.layers.{i}.{norm}.weight"] = (width,)
    found["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        found[f"{HEAD}.weight"] = (config["vocab_size"], hidden)
    return found


def _matrices(config: PlainConfig, family: Family) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    if family.fused:
        before: Shapes = {"self_attn.qkv_proj": (q + 2 * kv, hidden)}
        gated: Shapes = {"mlp.gate_up_proj": (2 * inner, hidden)}
    else:
        before = dict(zip(_QKV, ((q, hidden), (kv, hidden), (kv, hidden)), strict=True))
        gated = dict.fromkeys(_GATED, (inner, hidden))
    return {**before, "self_attn.o_proj": (hidden, q), **gated, "mlp.down_proj": (hidden, inner)}


def _norms(config: PlainConfig, family: Family) -> Iterator[tuple[str, int]]:
    around = ("pre_feedforward_layernorm", "post_feedforward_layernorm") if family.norms_after else ()
    for name in ("input_layernorm", "post_attention_layernorm", *around):
        yield name, config["hidden_size"]
    if family.head_norms:
        yield from (("self_attn.q_norm", config["head_dim"]), ("self_attn.k_norm", config["head_dim"]))


def _checked(folder: Path, config: PlainConfig, shapes: Shapes) -> Mapping[str, Tensor]:
    """The folder's tensors by parameter name, after checking that they are exactly these parameters."""
    tensors = open_tensors(folder)
    if not tensors:
        raise UnsupportedModelError("weights that are no safetensors are not read without torch")
    others = [name for name in tensors if name not in shapes and not name.endswith(_OF_NO_USE)]
    missing = [name for name in shapes if name not in tensors]
    if config["tie_word_embeddings"] and f"{HEAD}.weight" in others and not missing:
        _check_tied(folder, tensors)
        others.remove(f"{HEAD}.weight")
    if others:
        raise UnsupportedModelError(
            f"{config['model_type']} has no place for {len(others)} of its weights ({_named(others)}) without torch"
        )
    if missing:
        raise ExportError(f"{folder}: {len(missing)} weights are missing ({_named(missing)}). Download the whole model")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise ExportError(
                f"{tensor.path}: {name} is {list(tensor.shape)}, and by its config {list(shape)}. Download the whole "
                "model"
            )
        if tensor.dtype not in DTYPES:
            raise UnsupportedModelError(f"{name} is stored as {tensor.dtype}, which is not read without torch")
    return tensors


def _halved(shapes: Shapes, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the order of `shapes`, with fused gate and up split into two.

    Their kinds are chosen separately, as when torch traces the model.
    """
    found: dict[str, Tensor] = {}
    for name in shapes:
        tensor = stored[name]
        if not name.endswith("mlp.gate_up_proj.weight"):
            found[name] = tensor
            continue
        for i, layer in enumerate(_GATED):
            half = name.replace("mlp.gate_up_proj", layer)
            found[half] = tensor.part(half, i * tensor.shape[0] // 2, tensor.shape[0] // 2)
    return found


def _check_tied(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises ExportError for a head that differs from the embedding it is tied to."""
    embedding, head = tensors[f"{EMBEDDING}.weight"], tensors[f"{HEAD}.weight"]
    if embedding.shape == head.shape and embedding.dtype == head.dtype:
        step = max(1, _COMPARED // max(1, embedding.shape[-1]))
        parts = [slice(at, at + step) for at in range(0, embedding.shape[0], step)]
        if all(np.array_equal(embedding[part], head[part]) for part in parts):
            return
    raise ExportError(
        f"{folder}: its config says that the head is the embedding (tie_word_embeddings), and its files have another "
        "head. Say false there, or download the model again"
    )


def _named(names: list[str]) -> str:
    return printable(", ".join(names[:3])) + (", ..." if len(names) > 3 else "")
