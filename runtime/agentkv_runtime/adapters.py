"""LoRA adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685) that run beside a program's linear layers.

An adapter is a folder as peft writes it, of `adapter_config.json` and `adapter_model.safetensors`, or a GGUF file. The
linear layers of the program are those of its manifest, `Manifest.linears`. Imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import AdapterError, ExportError, GGUFError, UnsupportedModelError
from agentkv_runtime.folder.manifest import LinearLayers
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.hf.tensors import DTYPES, Tensor, tensors_of
from agentkv_runtime.sources.adapter_config import INSTEAD, PAIR, PREFIX, rank_of, read_adapter_config, scale_of

__all__ = ["AdapterWeights", "LoraAdapter", "read_adapter"]

WEIGHTS = "adapter_model.safetensors"
_FUSED, _HALVES = "gate_up_proj", ("gate_proj", "up_proj")  # programs have the two as layers of their own
_HEAD = "lm_head"

Floats = npt.NDArray[np.float32]
AdapterWeights = list[tuple[str, list[tuple[int, Floats, Floats]]]]
"""What `ExecuTorchSession.add_adapter` takes."""


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter that fits a program."""

    rank: int
    """The largest rank of a module."""
    modules: tuple[str, ...]
    """Names of the linear layers that it changes."""
    digest: str
    """SHA-256 of what it adds: two of the same digest are the same adapter."""
    weights: AdapterWeights

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices as float32."""
        return sum(a.nbytes + b.nbytes for _, layers in self.weights for _, a, b in layers)


class _Pair(NamedTuple):
    a: Floats  # [rank, inputs]
    b: Floats  # [outputs, rank], with the scale in it


class _Place(NamedTuple):
    weight: str
    first: int
    inputs: int
    outputs: int
    shared: bool


def read_adapter(path: Path, linears: Mapping[str, LinearLayers], head_dim: int) -> LoraAdapter:
    """Reads the adapter in a folder or a GGUF file for the linear layers of a program with heads of `head_dim`.

    Raises AdapterError for what is no adapter, for kinds that do not run beside a program, and for modules and shapes
    that the program does not have.
    """
    try:
        if path.is_file():
            from agentkv_runtime.gguf.adapter import read_pairs

            pairs = {module: _Pair(*pair) for module, pair in read_pairs(path, head_dim).items()}
        else:
            pairs = _folder_pairs(path)
    except (ExportError, GGUFError, UnsupportedModelError) as error:
        raise AdapterError(str(error)) from error
    placed = _placed(path, pairs, _places(linears))
    digest = hashlib.sha256()
    for module, pair in sorted(pairs.items()):
        digest.update(f"{module} {pair.a.shape} {pair.b.shape}".encode())
        digest.update(pair.a.tobytes() + pair.b.tobytes())
    return LoraAdapter(
        rank=max(pair.a.shape[0] for pair in pairs.values()),
        modules=tuple(sorted(pairs)),
        digest=f"sha256:{digest.hexdigest()}",
        weights=placed,
    )


def _folder_pairs(folder: Path) -> dict[str, _Pair]:
    """The matrices of each module of a folder. Raises AdapterError, ExportError."""
    config = read_adapter_config(folder)
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{folder}: trains biases (bias={config['bias']!r}), which only merging can. {INSTEAD}")
    tensors = {tensor.name.removeprefix(PREFIX): tensor for tensor in tensors_of(folder / WEIGHTS)}
    return _pairs(folder, config, tensors)


def _pairs(folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, _Pair]:
    """The matrices of each module. Raises AdapterError, ExportError."""
    sides: dict[str, dict[str, Tensor]] = {}
    others = []
    for name, tensor in tensors.items():
        pair = PAIR.fullmatch(name)
        if pair is None or pair["kind"] or pair["module"].rpartition(".")[2] == _HEAD:
            others.append(name)
        else:
            sides.setdefault(pair["module"], {})[pair["side"]] = tensor
    if others:
        raise AdapterError(
            f"{folder}: changes {_named(others)}; beside a program run only pairs of matrices of linear layers, not of "
            f"embeddings and heads, and no whole weights. {INSTEAD}"
        )
    incomplete = [module for module, found in sides.items() if len(found) != 2]
    if incomplete or not sides:
        what = f"{_named(incomplete)} has one of its two matrices" if incomplete else "holds no weights"
        raise AdapterError(f"{folder}: {what}. Download the whole adapter")
    return {module: _pair(folder, config, module, found) for module, found in sides.items()}


def _pair(folder: Path, config: dict[str, Any], module: str, sides: Mapping[str, Tensor]) -> _Pair:
    rank = rank_of(config, module)
    for side, tensor in sides.items():
        inner = tensor.shape[0 if side == "A" else 1] if len(tensor.shape) == 2 else None
        if inner != rank or tensor.dtype not in DTYPES:
            raise AdapterError(
                f"{folder}: {side} of {printable(module)} is {list(tensor.shape)} of {tensor.dtype}, which is not of "
                f"rank {rank:g}, as adapter_config.json says. Download the whole adapter"
            )
    b = sides["B"].floats() * np.float32(scale_of(config, module))
    return _Pair(np.ascontiguousarray(sides["A"].floats()), np.ascontiguousarray(b))


def _places(linears: Mapping[str, LinearLayers]) -> dict[str, _Place]:
    """Where each layer is in the program's products."""
    found: dict[str, _Place] = {}
    for weight, product in linears.items():
        first = 0
        for layer, outputs in product.layers:
            found[layer] = _Place(weight, first, product.inputs, outputs, product.shared)
            first += outputs
    return found


def _placed(folder: Path, pairs: Mapping[str, _Pair], places: Mapping[str, _Place]) -> AdapterWeights:
    """The matrices by weights of the program. Raises AdapterError naming what does not fit."""
    layers = {name: pair for module in pairs for name, pair in _halved(module, pairs[module], places).items()}
    missing = [name for name in layers if name not in places]
    if missing:
        raise AdapterError(
            f"{folder}: is of modules that the model does not have as linear layers ({_named(missing)}). Give an "
            "adapter of this model, or merge it at export"
        )
    misfits = [
        f"{name} is {list(pair.b.shape[:1] + pair.a.shape[1:])}, and the model's {[place.outputs, place.inputs]}"
        for name, pair in layers.items()
        if (pair.b.shape[0], pair.a.shape[1]) != ((place := places[name]).outputs, place.inputs)
    ]
    if misfits:
        raise AdapterError(f"{folder}: is of another model: {'; '.join(misfits[:3])}. Give the model that it is of")
    shared = [name for name in layers if places[name].shared]
    if shared:
        raise AdapterError(
            f"{folder}: changes {_named(shared)}, whose weight is equal to another layer's, so that the program has "
            "both once. Merge the adapter at export"
        )
    found: dict[str, list[tuple[int, Floats, Floats]]] = {}
    for name, pair in layers.items():
        found.setdefault(places[name].weight, []).append((places[name].first, pair.a, pair.b))
    return [(weight, sorted(parts, key=lambda part: part[0])) for weight, parts in sorted(found.items())]


def _halved(module: str, pair: _Pair, places: Mapping[str, _Place]) -> dict[str, _Pair]:
    """A fused gate and up as the two layers that the program may have instead; other modules as they are."""
    before, _, last = module.rpartition(".")
    halves = [f"{before}.{half}" for half in _HALVES]
    if module in places or last != _FUSED or halves[0] not in places or len(pair.b) % 2:
        return {module: pair}
    return {name: _Pair(pair.a, b) for name, b in zip(halves, np.split(pair.b, 2), strict=True)}


def _named(names: list[str]) -> str:
    return printable(", ".join(sorted(names)[:4])) + (f", and {len(names) - 4} more" if len(names) > 4 else "")
