"""LoRA adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685) that run beside a program's linear layers.

An adapter is a folder as peft writes it, of `adapter_config.json` and `adapter_model.safetensors`, or a GGUF file. The
linear layers of the program are those of its manifest, `Manifest.linears`. Imports no torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import AdapterError, ExportError, GGUFError, UnsupportedModelError
from agentkv_runtime.folder.manifest import LinearLayers
from agentkv_runtime.folder.printable import printable, some_names
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


class UnreadPair(NamedTuple):
    """Both matrices of a module, before they are read.

    Attributes:
        a: shape [rank, inputs].
        b: shape [outputs, rank].
        read: reads the two, the second one with the scale in it.
    """

    a: Sequence[int]
    b: Sequence[int]
    read: Callable[[], tuple[Floats, Floats]]


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
    places = _places(linears)
    try:
        sides = (
            _in_file(path, head_dim) if os.path.isfile(path) else _in_folder(path)
        )  # False for names that no file can have
        _check_fit(path, sides, places)  # before a number is read: files say sizes that no memory has
        pairs = {module: _Pair(*found.read()) for module, found in sides.items()}
    except (ExportError, GGUFError, UnsupportedModelError) as error:
        raise AdapterError(str(error)) from error
    digest = hashlib.sha256()
    for module, pair in sorted(pairs.items()):
        digest.update(f"{module} {pair.a.shape} {pair.b.shape}".encode())
        digest.update(pair.a.tobytes() + pair.b.tobytes())
    return LoraAdapter(
        rank=max(pair.a.shape[0] for pair in pairs.values()),
        modules=tuple(sorted(pairs)),
        digest=f"sha256:{digest.hexdigest()}",
        weights=_placed(pairs, places),
    )


def _in_file(path: Path, head_dim: int) -> dict[str, UnreadPair]:
    """The matrices of each module of a GGUF file. Raises AdapterError, GGUFError, UnsupportedModelError."""
    from agentkv_runtime.gguf.adapter import find_pairs

    return {module: UnreadPair(*found) for module, found in find_pairs(path, head_dim).items()}


def _in_folder(folder: Path) -> dict[str, UnreadPair]:
    """The matrices of each module of a folder. Raises AdapterError, ExportError."""
    config = read_adapter_config(folder)
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{folder}: trains biases (bias={config['bias']!r}), which only merging can. {INSTEAD}")
    return {
        module: UnreadPair(found["A"].shape, found["B"].shape, partial(_read_pair, folder, config, module, found))
        for module, found in _sides(folder, config, list(tensors_of(folder / WEIGHTS))).items()
    }


def _sides(folder: Path, config: dict[str, Any], tensors: Sequence[Tensor]) -> dict[str, dict[str, Tensor]]:
    """The two matrices, A and B, of each module. Raises AdapterError, ExportError."""
    sides: dict[str, dict[str, Tensor]] = {}
    others, twice = [], []
    for tensor in tensors:
        name = tensor.name.removeprefix(PREFIX)
        pair = PAIR.fullmatch(name)
        if pair is None or pair["kind"] or pair["module"].rpartition(".")[2] == _HEAD:
            others.append(name)
        elif sides.setdefault(pair["module"], {}).setdefault(pair["side"], tensor) is not tensor:
            twice.append(name)
    if others:
        raise AdapterError(
            f"{folder}: changes {some_names(others)}; beside a program run only pairs of matrices of linear layers, "
            f"not of embeddings and heads, and no whole weights. {INSTEAD}"
        )
    if twice:
        raise AdapterError(f"{folder}: has {some_names(twice)} twice, by two names. Download the whole adapter")
    incomplete = [module for module, found in sides.items() if len(found) != 2]
    if incomplete or not sides:
        what = f"{some_names(incomplete)} has one of its two matrices" if incomplete else "holds no weights"
        raise AdapterError(f"{folder}: {what}. Download the whole adapter")
    for module, found in sides.items():
        _check_rank(folder, module, found, rank_of(config, module))
    return sides


def _check_rank(folder: Path, module: str, sides: Mapping[str, Tensor], rank: float) -> None:
    for side, tensor in sides.items():
        what = f"{folder}: {side} of {printable(module)} is {list(tensor.shape)} of {tensor.dtype}, which is "
        if tensor.dtype not in DTYPES:
            raise AdapterError(f"{what}not read; save the adapter as {', '.join(DTYPES)}")
        if len(tensor.shape) != 2 or tensor.shape[0 if side == "A" else 1] != rank:
            raise AdapterError(f"{what}not of rank {rank:g}, as adapter_config.json says. Download the whole adapter")


def _read_pair(folder: Path, config: dict[str, Any], module: str, sides: Mapping[str, Tensor]) -> tuple[Floats, Floats]:
    scale = scale_of(config, module)
    with np.errstate(over="ignore"):
        b = sides["B"].floats() * np.float32(scale)
    if not np.isfinite(b).all():
        raise AdapterError(f"{folder}: B of {printable(module)} is too large for float32, scaled by {scale:g}")
    return np.ascontiguousarray(sides["A"].floats()), np.ascontiguousarray(b)


def _places(linears: Mapping[str, LinearLayers]) -> dict[str, _Place]:
    """Where each layer is in the program's products."""
    found: dict[str, _Place] = {}
    for weight, product in linears.items():
        first = 0
        for layer, outputs in product.layers:
            found[layer] = _Place(weight, first, product.inputs, outputs, product.shared)
            first += outputs
    return found


def _check_fit(path: Path, sides: Mapping[str, UnreadPair], places: Mapping[str, _Place]) -> None:
    """Raises AdapterError naming what does not fit."""
    sizes: dict[str, list[int]] = {}
    for module, found in sides.items():
        (rank, inputs), outputs = found.a, found.b[0]
        for name, part in _layers(module, outputs, places).items():
            if name in sizes:
                raise AdapterError(f"{path}: changes {printable(name)} twice, as {_FUSED}, too. Give one of the two")
            sizes[name] = [len(part), inputs]
        if rank > max(inputs, outputs):
            raise AdapterError(
                f"{path}: {printable(module)} is of rank {rank}, and no more than {inputs} to {outputs} numbers. "
                "Download the whole adapter"
            )
    missing = [name for name in sizes if name not in places]
    if missing:
        raise AdapterError(
            f"{path}: is of modules that the model does not have as linear layers ({some_names(missing)}). Give an "
            "adapter of this model, or merge it at export"
        )
    misfits = [
        f"{name} is {size}, and the model's {[place.outputs, place.inputs]}"
        for name, size in sizes.items()
        if size != [(place := places[name]).outputs, place.inputs]
    ]
    if misfits:
        raise AdapterError(f"{path}: is of another model: {'; '.join(misfits[:3])}. Give the model that it is of")
    shared = [name for name in sizes if places[name].shared]
    if shared:
        raise AdapterError(
            f"{path}: changes {some_names(shared)}, whose weight is equal to another layer's, so that the program has "
            "both once. Merge the adapter at export"
        )


def _placed(pairs: Mapping[str, _Pair], places: Mapping[str, _Place]) -> AdapterWeights:
    """The matrices by weights of the program."""
    found: dict[str, list[tuple[int, Floats, Floats]]] = {}
    for module, pair in pairs.items():
        for name, part in _layers(module, len(pair.b), places).items():
            found.setdefault(places[name].weight, []).append(
                (places[name].first, pair.a, pair.b[part.start : part.stop])
            )
    return [(weight, sorted(parts, key=lambda part: part[0])) for weight, parts in sorted(found.items())]


def _layers(module: str, outputs: int, places: Mapping[str, _Place]) -> dict[str, range]:
    """The outputs of a module by the program's layers: a fused gate and up may be two of them."""
    before, _, last = module.rpartition(".")
    halves = [f"{before}.{half}" for half in _HALVES]
    if module in places or last != _FUSED or halves[0] not in places or outputs % 2:
        return {module: range(outputs)}
    return {halves[0]: range(outputs // 2), halves[1]: range(outputs // 2, outputs)}
