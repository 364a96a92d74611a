"""Names of multi-token prediction layers among the tensors of a checkpoint. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from agentkv_runtime.errors import UnsupportedModelError

__all__ = ["NextTokenNames", "NextTokenTensors", "find_next_token"]

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class _Naming:
    """How a family of models names the parts of its layers."""

    root: str
    """Prefix of the first layer: `{model}` is that of the model's own tensors, `{layers}` the number of its layers."""
    parts: dict[str, str]
    """Name under the root of each part."""
    inner: str = ""
    """Prefix under the root of the decoder layer's own tensors."""
    hidden_first: bool = False
    """Whether hidden states come before embeddings in what is mixed."""


_NAMINGS = (
    _Naming(  # DeepSeek-V3, GLM-4.5 and later
        "{model}layers.{layers}.",
        {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"},
    ),
    _Naming(  # Qwen3-Next, Qwen3.5
        "mtp.",
        {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "norm": "norm"},
        inner="layers.0.",
    ),
    _Naming(  # MiMo
        "{model}mtp_layers.0.",
        {
            "enorm": "token_layernorm",
            "hnorm": "hidden_layernorm",
            "eh_proj": "input_proj",
            "norm": "final_layernorm",
        },
        hidden_first=True,
    ),
)


@dataclass(frozen=True)
class NextTokenTensors:
    """Tensors of a layer: where each is in the checkpoint."""

    layer: dict[str, str]
    """Of the model of one layer, by the name that a checkpoint of that model would have."""
    parts: dict[str, str]
    """Of what is around it: `target_norm`, `enorm`, `hnorm` and `eh_proj`."""


@dataclass(frozen=True)
class NextTokenNames:
    """The first multi-token prediction layer of a checkpoint."""

    naming: _Naming
    root: str
    model: str
    """Prefix of the model's own tensors."""

    @property
    def hidden_first(self) -> bool:
        """Whether hidden states come before embeddings in what is mixed."""
        return self.naming.hidden_first

    def tensors(self, names: Collection[str], *, tied: bool) -> NextTokenTensors:
        """Tensors of the layer among the names of a checkpoint, whose head may be `tied` to its embedding.

        Raises UnsupportedModelError if some are missing.
        """
        inner, parts = self.root + self.naming.inner, self.naming.parts
        around = {self.root + part for part in parts.values()}
        layer = {
            "model.layers.0." + name.removeprefix(inner): name
            for name in names
            if name.startswith(inner) and name.rpartition(".")[0] not in around
        }
        for copied in (_EMBEDDING, "shared_head.head.weight"):
            layer.pop("model.layers.0." + copied, None)
        layer["model.norm.weight"] = self.root + parts["norm"] + ".weight"
        layer["model." + _EMBEDDING] = self._own_or(_EMBEDDING, self.model + _EMBEDDING, names)
        if not tied:
            head = next((name for name in names if name.endswith(_HEAD)), _HEAD)
            layer[_HEAD] = self._own_or("shared_head.head.weight", head, names)
        outside = {part: f"{self.root}{parts[part]}.weight" for part in ("enorm", "hnorm", "eh_proj")}
        outside["target_norm"] = self.model + "norm.weight"
        if missing := sorted({*layer.values(), *outside.values()} - set(names)):
            raise UnsupportedModelError(f"the multi-token prediction layer lacks {', '.join(missing)}")
        return NextTokenTensors(layer, outside)

    def _own_or(self, own: str, other: str, names: Collection[str]) -> str:
        return self.root + own if self.root + own in names else other


def find_next_token(names: Collection[str], n_layers: int) -> NextTokenNames | None:
    """The first multi-token prediction layer among the tensors of a checkpoint of `n_layers`; None if there is none."""
    embedding = min((name for name in names if name.endswith(_EMBEDDING)), key=len, default=None)
    if embedding is None:
        return None
    model = embedding.removesuffix(_EMBEDDING)
    for naming in _NAMINGS:
        root = naming.root.format(model=model, layers=n_layers)
        if f"{root}{naming.parts['eh_proj']}.weight" in names:
            return NextTokenNames(naming, root, model)
    return None
