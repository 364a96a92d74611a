"""An architecture: how config and parameters of a transformers model follow from a file's keys and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentkv_runtime.errors import GGUFError
from agentkv_runtime.gguf.architectures.layout import Layout, Sizes, parameters_of
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.rope import rope_parameters
from agentkv_runtime.gguf.weights import Parameter, Weights

__all__ = ["Architecture", "Description"]

Config = dict[str, Any]


@dataclass(frozen=True)
class Description:
    """Config and parameters of a model under transformers' names."""

    config: Config
    """Settings of config.json, as far as the file determines them."""
    parameters: Mapping[str, Parameter]

    def weights(self) -> Weights:
        """The parameters, read from the mapped file when asked for."""
        return Weights(self.parameters)


def _nothing(_keys: Keys, _sizes: Sizes) -> Config:
    return {}


def _no_more(_keys: Keys, _sizes: Sizes) -> dict[str, Parameter]:
    return {}


@dataclass(frozen=True)
class Architecture:
    """The properties in which architectures differ."""

    model_type: str
    """Name in transformers."""
    layout: Layout
    settings: Callable[[Keys, Sizes], Config] = _nothing
    """Settings of the config that add to the common ones or replace them."""
    norm: str | None = "rms_norm_eps"
    """Key of the norms' epsilon in the config; None if the config has none."""
    partial: bool = False
    """Whether a file may rotate only a part of each head."""
    rotary: bool = True
    """Whether the architecture has rotary positions."""
    without: tuple[str, ...] = ()
    """Common settings that the config cannot have."""
    more: Callable[[Keys, Sizes], Mapping[str, Parameter]] = _no_more
    """Parameters that do not each come from one tensor of the file."""

    def describe(self, keys: Keys) -> Description:
        """Reads all keys and places all tensors.

        Raises GGUFError for wrong keys or tensors, UnsupportedModelError for unknown ones.
        """
        sizes = _sizes(keys)
        config = self._config(keys, sizes)
        keys.check_all_read()
        parameters = parameters_of(keys.file, self.layout, sizes, self.more(keys, sizes))
        return Description(config, parameters)

    def _config(self, keys: Keys, sizes: Sizes) -> Config:
        config: Config = {
            "model_type": self.model_type,
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.intermediate,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "vocab_size": sizes.vocabulary,
            "max_position_embeddings": keys.whole("context_length"),
            "tie_word_embeddings": not keys.has("output.weight"),
            "pad_token_id": None,  # nothing is padded, and files name ids that they do not have
        }
        if self.norm is not None:
            config[self.norm] = keys.number(_EPSILONS[self.norm.startswith("rms")])
        if self.rotary:
            config["rope_parameters"] = rope_parameters(keys, sizes.head_dim, self.partial)
        for token in ("bos", "eos"):
            config |= _token(keys, token, sizes.vocabulary)
        config |= self.settings(keys, sizes)
        return {name: value for name, value in config.items() if name not in self.without}


def _token(keys: Keys, name: str, vocabulary: int) -> Config:
    stated = keys.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    is_token = isinstance(stated, int) and not isinstance(stated, bool) and 0 <= stated < vocabulary
    return {f"{name}_token_id": stated} if is_token else {}


_EPSILONS = {True: "attention.layer_norm_rms_epsilon", False: "attention.layer_norm_epsilon"}


def _sizes(keys: Keys) -> Sizes:
    """Reads the sizes of a model. Raises GGUFError for sizes that fit no model."""
    hidden, heads, layers = (keys.whole(key) for key in ("embedding_length", "attention.head_count", "block_count"))
    kv_heads = keys.whole("attention.head_count_kv", heads)
    head_dim = keys.whole("attention.key_length", hidden // max(heads, 1))
    experts = keys.whole("expert_count", 0)
    intermediate = keys.whole("feed_forward_length", 0 if experts else None)
    embedding = keys.file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GGUFError(f"{keys.file.path}: token_embd.weight is missing or no matrix. Download the whole model")
    for key, wrong in {
        "attention.head_count": heads == 0,
        "attention.head_count_kv": kv_heads == 0 or heads % kv_heads != 0,
        "attention.value_length": keys.whole("attention.value_length", head_dim) != head_dim,
        "attention.key_length": head_dim == 0 or head_dim % 2 != 0,
        "block_count": not 0 < layers <= len(keys.file.tensors),
        "expert_count": experts > 0 and keys.whole("expert_used_count", 0) not in range(1, experts + 1),
    }.items():
        if wrong:
            raise GGUFError(
                f"{keys.file.path}: {keys.architecture}.{key} does not fit the other keys of the file, or its tensors. "
                "Convert it again"
            )
    return Sizes(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=embedding.shape[0],
        experts=experts,
        expert_intermediate=keys.whole("expert_feed_forward_length", intermediate) if experts else 0,
        shared_intermediate=keys.whole("expert_shared_feed_forward_length", 0) if experts else 0,
    )
