"""Multi-token prediction layers of checkpoints: one more decoder layer, which guesses the token after the next.

A row at position t mixes the model's hidden state at t with the embedding of token t + 1 and predicts token t + 2
(DeepSeek-V3, arXiv 2412.19437, section 2.2). The hidden state is that after the model's final norm, as the model's own
head reads it; deeper guesses take the layer's own normalised output in its place.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.folder.next_token_names import NextTokenNames
from agentkv_runtime.hf.blame import first_line
from agentkv_runtime.hf.weights import FolderWeights, checked_float

__all__ = ["NextTokenModel", "load_next_token", "mixing"]

_hidden: ContextVar[torch.Tensor | None] = ContextVar("agentkv_hidden", default=None)


@contextmanager
def mixing(hidden: torch.Tensor) -> Iterator[None]:
    """Gives a NextTokenModel that runs in the block its hidden states, `[T, H]`."""
    token = _hidden.set(hidden)
    try:
        yield
    finally:
        _hidden.reset(token)


class NextTokenModel(nn.Module):
    """A multi-token prediction layer as a causal model of one layer, with that model's other attributes.

    Its input rows are mixed of embedded tokens and the hidden states of `mixing`; outside of it, of embeddings alone.
    """

    def __init__(self, causal: nn.Module, norm: nn.Module, *, hidden_first: bool) -> None:
        """`causal` is the model of one layer, `norm` one like its final norm."""
        super().__init__()
        self.causal = causal
        self.target_norm, self.enorm, self.hnorm = (copy.deepcopy(norm) for _ in range(3))
        width = self.config.hidden_size
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self._hidden_first = hidden_first

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model of one layer."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("causal"), name)

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """input_ids `[1, T]`; takes and returns what the model of one layer does."""
        embedded = self.get_input_embeddings()(input_ids)
        hidden = _hidden.get()
        parts = [self.enorm(embedded), self.hnorm(embedded if hidden is None else hidden[None])]
        mixed = self.eh_proj(torch.cat(parts[::-1] if self._hidden_first else parts, dim=-1))
        return self.causal(inputs_embeds=mixed, **kwargs)


def load_next_token(path: Path, names: NextTokenNames, config: PretrainedConfig) -> NextTokenModel:
    """Loads the layer that `names` found in a Hugging Face folder, in float32.

    Raises UnsupportedModelError for a layer of another kind than the model's own ones, or without some of its weights.
    """
    weights = FolderWeights(path)
    sources = names.tensors(weights.names(), tied=bool(config.tie_word_embeddings))
    one = _config_of_one_layer(config, sources.layer)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(one)]
    try:
        causal, info = kind.from_pretrained(
            None,
            config=one,
            state_dict={name: _load(weights, source) for name, source in sources.layer.items()},
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        model = NextTokenModel(causal, causal.get_decoder().norm, hidden_first=names.hidden_first).eval()
    except Exception as error:  # transformers raises many kinds
        raise UnsupportedModelError(
            f"{path}: its multi-token prediction layer is no layer of {config.model_type}: {first_line(error)}"
        ) from error
    if odd := sorted(info["missing_keys"] | info["unexpected_keys"]):
        raise UnsupportedModelError(
            f"{path}: its multi-token prediction layer is no layer of {config.model_type}: they differ in "
            f"{', '.join(odd[:3])}"
        )
    for part, source in sources.parts.items():
        weight, value = model.get_submodule(part).weight, _load(weights, source).float()
        if not isinstance(weight, torch.Tensor) or weight.shape != value.shape:
            raise UnsupportedModelError(f"{path}: {source} is {list(value.shape)}, which does not fit the model")
        weight.data.copy_(value)
    return model


def _load(weights: FolderWeights, name: str) -> torch.Tensor:
    return checked_float(name, weights.load(name))


def _config_of_one_layer(config: PretrainedConfig, tensors: Collection[str]) -> Any:
    """The config of a model that has one layer alone, of the kind that attends, with experts if there are any."""
    one: Any = copy.deepcopy(config)
    one.num_hidden_layers = 1
    sparse = any(".experts." in name for name in tensors)
    kinds = getattr(one, "layer_types", None)
    if kinds:
        one.layer_types = ["full_attention" if "full_attention" in kinds else kinds[-1]]
    fields = {
        "mlp_layer_types": ["sparse" if sparse else "dense"],
        "first_k_dense_replace": 0 if sparse else 1,
        "mlp_only_layers": [] if sparse else [0],
        "decoder_sparse_step": 1,
    }
    for name, value in fields.items():
        if getattr(one, name, None) is not None:
            setattr(one, name, value)
    return one
