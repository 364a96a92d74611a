"""Mapping of transformers' parameters to the tensors of a GGUF file: names, and changes to the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from agentkv_runtime.errors import GGUFError, UnsupportedModelError
from agentkv_runtime.gguf.file import GGUFFile, Tensor
from agentkv_runtime.gguf.rope import OF_ROPE
from agentkv_runtime.gguf.weights import Order, Parameter

__all__ = ["Layout", "Names", "Sizes", "Source", "parameters_of"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model, from which the shapes of its tensors follow."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0


@dataclass(frozen=True)
class Source:
    """Tensors of the file from which a transformers layer gets its weight and bias."""

    parts: tuple[str, ...]
    """Names in the file without `.weight` or `.bias`; their rows are concatenated."""
    bias: bool | None = False
    """Whether there is a bias; None: if the file has it."""
    weight: bool | None = True
    """Whether there is a weight; None: if the file has it."""
    order: Callable[[Sizes], Order] | None = None
    """Index in the file of each row of the parameter; None for the same order."""
    added: float = 0.0
    transposed: bool = False
    bare: bool = False
    """Whether parameters are named NAME and NAME_bias instead of NAME.weight and NAME.bias."""
    shape: Callable[[Sizes], tuple[int, ...]] | None = None

    def ends(self) -> Iterator[tuple[str, str, bool | None]]:
        """Yields the suffix of the parameter, the suffix of the tensor, and whether it must be there (None: may be)."""
        yield ("" if self.bare else ".weight"), ".weight", self.weight
        yield ("_bias" if self.bare else ".bias"), ".bias", self.bias


Names = Mapping[str, str | Source]
"""Sources by transformers' names without suffix; a plain str names a tensor used as it is."""


@dataclass(frozen=True)
class Layout:
    """Names of the parameters of a family, and the layout of their tensors."""

    layer: Names
    """Names within each layer."""
    outer: Names
    """Names outside of layers."""
    prefix: str = "model.layers"
    """Prefix of layers in transformers."""
    up_is_fused: bool = False
    """Whether the tensor ffn_up contains the gate's rows, too."""
    head_norms: Literal["shared", "joint", "each"] = "shared"
    """Shape of the norms of queries and keys: one head for all, all heads in a row, or one row per head."""


def parameters_of(file: GGUFFile, layout: Layout, sizes: Sizes, more: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """All parameters by transformers' names, those of `more` included.

    Raises GGUFError for tensors that are missing or whose shapes contradict the file's keys, UnsupportedModelError for
    tensors that no parameter uses.
    """
    shapes = _shapes(sizes, layout)
    for tensor in file.tensors.values():
        _check_shape(file, shapes, tensor)
    found: dict[str, Parameter] = dict(more)
    for name, source in layout.outer.items():
        found |= _found(file, sizes, name, "", source)
    for i in range(sizes.layers):
        for name, source in layout.layer.items():
            found |= _found(file, sizes, f"{layout.prefix}.{i}.{name}", f"blk.{i}.", source)
    used = {part.name for parameter in found.values() for part in parameter.parts}
    unknown = [name for name in file.tensors if name not in used and name not in OF_ROPE]
    if unknown:
        raise UnsupportedModelError(
            f"{file.path}: holds {len(unknown)} tensors that its architecture has no place for "
            f"({', '.join(unknown[:3])}). Export the Hugging Face folder that it was made from"
        )
    _check_alike(file, layout, sizes)
    return found


def _found(file: GGUFFile, sizes: Sizes, name: str, place: str, source: str | Source) -> dict[str, Parameter]:
    source = _source(source)
    found = {}
    for end, stored, must in source.ends():
        parts = [f"{place}{part}{stored}" for part in source.parts]
        if must is False or (must is None and parts[0] not in file.tensors):
            continue
        missing = next((part for part in parts if part not in file.tensors), None)
        if missing is not None:
            raise GGUFError(f"{file.path}: {missing} is missing. Download the whole model, or convert it again")
        found[name + end] = _parameter(source, sizes, tuple(file.tensors[part] for part in parts), stored == ".bias")
    return found


def _source(named: str | Source) -> Source:
    return named if isinstance(named, Source) else Source((named,))


def _parameter(source: Source, sizes: Sizes, parts: tuple[Tensor, ...], is_bias: bool) -> Parameter:
    return Parameter(
        parts,
        axis=-1 if is_bias or len(parts[0].shape) == 1 else -2,
        order=None if source.order is None else source.order(sizes),
        added=0.0 if is_bias else source.added,
        transposed=source.transposed and not is_bias,
        shape=None if source.shape is None or is_bias else source.shape(sizes),
    )


def _check_alike(file: GGUFFile, layout: Layout, sizes: Sizes) -> None:
    """Raises GGUFError if some layers have an optional tensor and others do not."""
    for source in map(_source, layout.layer.values()):
        for _, stored, must in source.ends():
            names = [f"blk.{i}.{part}{stored}" for i in range(sizes.layers) for part in source.parts]
            there = [name for name in names if name in file.tensors]
            if must is None and there and len(there) < len(names):
                missing = next(name for name in names if name not in file.tensors)
                raise GGUFError(f"{file.path}: {missing} is missing, and {there[0]} is there. Convert it again")


def _shapes(sizes: Sizes, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Shapes of weights by tensor name, as the file's keys imply; a bias lacks the last dimension."""
    hidden, queries, keys = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    inner, each, shared = sizes.intermediate, sizes.expert_intermediate, sizes.shared_intermediate
    return {
        "token_embd": (sizes.vocabulary, hidden),
        "output": (sizes.vocabulary, hidden),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_qkv": (queries + 2 * keys, hidden),
        "attn_output": (hidden, queries),
        "attn_q_norm": _of_heads(layout, sizes.heads, sizes.head_dim),
        "attn_k_norm": _of_heads(layout, sizes.kv_heads, sizes.head_dim),
        "attn_sinks": (sizes.heads,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner * (2 if layout.up_is_fused else 1), hidden),
        "ffn_down": (hidden, inner),
        "ffn_gate_inp": (sizes.experts, hidden),
        "ffn_gate_exps": (sizes.experts, each, hidden),
        "ffn_up_exps": (sizes.experts, each, hidden),
        "ffn_down_exps": (sizes.experts, hidden, each),
        "ffn_gate_shexp": (shared, hidden),
        "ffn_up_shexp": (shared, hidden),
        "ffn_down_shexp": (hidden, shared),
    }


def _of_heads(layout: Layout, heads: int, head_dim: int) -> tuple[int, ...]:
    return {"shared": (head_dim,), "joint": (heads * head_dim,), "each": (heads, head_dim)}[layout.head_norms]


def _check_shape(file: GGUFFile, shapes: Mapping[str, tuple[int, ...]], tensor: Tensor) -> None:
    stem, _, end = tensor.name.rpartition(".")
    stem = stem.rpartition(".")[2]
    must = shapes.get(stem)
    if must is None and stem.endswith(("norm", "norm_2")):
        must = (shapes["token_embd"][1],)
    elif must is not None and end == "bias":
        must = must[:-1]
    if must is not None and tensor.shape != must:
        raise GGUFError(
            f"{file.path}: {tensor.name} is {list(tensor.shape)}, and must be {list(must)} by the file's keys. "
            "Convert it again"
        )
