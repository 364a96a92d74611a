"""Check that a model gives the same logits through a cache, in chunks, as by itself; made before it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.folder.metadata import Kept, LayerShape
from agentkv_runtime.hf.blame import blame
from agentkv_runtime.hf.convolution import conv_shape, sum_of_taps
from agentkv_runtime.hf.latent import is_start
from agentkv_runtime.hf.linear_attention import LinearInputs, linear_shape
from agentkv_runtime.hf.op import active_cache
from agentkv_runtime.hf.scoring import Scoring
from agentkv_runtime.hf.selective_scan import ScanInputs, scan_shape
from agentkv_runtime.hf.wrapper import CachedForward

__all__ = ["check_in_chunks", "check_layers", "reference_logits", "short_windows"]

_ROWS = 8
_FIRST = 5  # rows of the first of two chunks
_TOLERANCE = 1e-3  # of the largest logit, or 1: rounding is far below, and what this is for far above
_ROUNDINGS = 16  # and in half precision, roundings of it
_STATELESS = ("mlp", "moe")  # types of layers that keep nothing of a token
_WINDOW = 3  # what sliding windows are while the model is tried, for its few tokens to pass them


class _OneSequence:
    """An AttendingCache of one sequence."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.shapes: dict[int, LayerShape] = {}
        """Shape of each layer's cache entry per token, by layer index."""

    def attend(
        self,
        layer_id: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        position: torch.Tensor,
        scoring: Scoring,
        writes: bool,
    ) -> torch.Tensor:
        if writes:
            kept = Kept.LATENT if is_start(v, k) else Kept.KEYS_AND_VALUES
            self.shapes[layer_id] = LayerShape(k.shape[1], k.shape[3], v.shape[3], kept)
            before = self.layers.get(layer_id)
            if before is not None:
                k, v = torch.cat((before[0], k), 2), torch.cat((before[1], v), 2)
            self.layers[layer_id] = (k, v)
        group = q.shape[1] // k.shape[1]
        k, v = (each[0].repeat_interleave(group, 0) for each in self.layers[layer_id])
        seen = torch.arange(k.shape[1], device=k.device)
        weights = scoring.weights(q[0] @ k.transpose(1, 2), position, seen, scoring.visible(position, seen))
        return (weights @ v)[None]

    def convolve(
        self,
        layer_id: int,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        position: torch.Tensor,
    ) -> torch.Tensor:
        self.shapes[layer_id] = conv_shape(x.shape[2])
        before = self.layers.get(layer_id)
        rows = x if before is None else torch.cat((before[0], x), 1)
        self.layers[layer_id] = (rows, rows)
        padded = torch.nn.functional.pad(rows[0], (0, 0, weight.shape[2], 0))
        return sum_of_taps(lambda j: padded[position + weight.shape[2] - j], weight, bias)[None]

    def attend_linear(self, layer_id: int, inputs: LinearInputs, position: torch.Tensor) -> torch.Tensor:
        del position
        self.shapes[layer_id] = linear_shape(inputs.k, inputs.v, inputs.decay)
        q, k, decay = inputs.for_each_head()
        held = self.layers.get(layer_id)
        state = held[0] if held else q.new_zeros(*k.shape[1:], inputs.v.shape[3])
        out = []
        for t in range(q.shape[0]):
            state = state * decay[t].exp()[..., None]
            u = inputs.added(t, torch.einsum("hkv,hk->hv", state, k[t]))
            state = state + k[t, :, :, None] * u[:, None]
            out.append(torch.einsum("hkv,hk->hv", state, q[t]))
        self.layers[layer_id] = (state, state)
        return inputs.skipped(torch.stack(out)[None])

    def scan(self, layer_id: int, inputs: ScanInputs, position: torch.Tensor) -> torch.Tensor:
        del position
        self.shapes[layer_id] = scan_shape(inputs.x, inputs.b)
        held = self.layers.get(layer_id)
        state = held[0] if held else torch.zeros_like(inputs.rates)
        out = []
        for t in range(inputs.x.shape[1]):
            state = inputs.step(state, t)
            out.append(inputs.c[0, t] @ state)
        self.layers[layer_id] = (state, state)
        return torch.stack(out)[None]


@contextmanager
def short_windows(model: Any) -> Iterator[None]:
    """Shortens the model's sliding windows and chunks to at most 3 positions in the block."""
    holders = [model.config, model.config.get_text_config(), *model.modules()]
    longer = [
        (holder, name, length)
        for holder in holders
        for name in ("sliding_window", "attention_window_size", "attention_chunk_size")
        if isinstance(length := vars(holder).get(name), int) and length > _WINDOW
    ]
    try:
        for holder, name, _ in longer:
            setattr(holder, name, _WINDOW)
        yield
    finally:
        for holder, name, length in longer:
            setattr(holder, name, length)


def check_layers(config: Any, layers: Collection[int]) -> None:
    """Raises UnsupportedModelError unless the layers that attended through a cache are all that the config has."""
    name, count = config.model_type, config.num_hidden_layers
    if not layers:
        raise UnsupportedModelError(
            f"{name} has no attention that goes through transformers' attention interface: it computes its own, or none"
        )
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or [""] * count
    if {layer for layer in range(count) if types[layer] not in _STATELESS} - set(layers):
        raise UnsupportedModelError(
            f"{name}: {len(layers)} of {count} layers attend through the cache; the others keep state that agentkv"
            " does not hold"
        )


def _tokens(model: Any) -> torch.Tensor:
    """Tokens `[8]` to check with, from 1 on, without the model's padding."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
    tokens = torch.arange(1, 2 + _ROWS, device=model.device)
    return tokens[tokens != padding][:_ROWS]


def reference_logits(model: Any) -> torch.Tensor:
    """The model's own logits for a few tokens, float32 `[8, vocab]`.

    Raises UnsupportedModelError for a model that does not run from tokens alone, or whose logits are NaN or infinite.
    """
    name = model.config.model_type
    try:
        tokens = _tokens(model)
        logits: torch.Tensor = model(input_ids=tokens[None], use_cache=False).logits[0]
    except Exception as error:  # it wants images, sound, an encoder's states
        raise UnsupportedModelError(f"{name} does not run from tokens alone{blame(error, model)}") from error
    if logits.shape[0] != _ROWS:
        raise UnsupportedModelError(f"{name} returns {logits.shape[0]} rows of logits for {_ROWS} tokens")
    if not logits.amax(-1).isfinite().all():  # NaN, +inf, or all -inf: some logits may be masked with that
        raise UnsupportedModelError(
            f"{name} gives logits that are no numbers: a weight is NaN, infinite or too large. "
            "Download or train it again"
        )
    return logits.float()


def check_in_chunks(model: Any, want: torch.Tensor) -> list[LayerShape]:
    """Feeds the tokens of `reference_logits` through a cache in two chunks; returns the shape of each layer.

    Leaves the model with agentkv's attention. Raises UnsupportedModelError for a model whose logits then differ from
    `want`: one that carries more than keys and values between forwards, or numbers positions in its own way.
    """
    name = model.config.model_type
    head = model.get_output_embeddings()
    tokens, position = _tokens(model), torch.arange(_ROWS, device=model.device)
    forward = CachedForward(model)
    cache = _OneSequence()
    try:
        with active_cache(cache):
            chunks = [
                forward(tokens[rows], position[rows], position[: rows.stop - rows.start])
                for rows in (slice(0, _FIRST), slice(_FIRST, _ROWS))
            ]
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(f"{name} does not run through the cache{blame(error, model)}") from error
    finally:
        model.set_output_embeddings(head)
    check_layers(model.config.get_text_config(), forward.attended)
    off = (torch.cat(chunks) - want).abs().amax(-1) / want.abs().max().clamp(min=1.0)
    tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(model.dtype).eps)
    if not off[:_FIRST].max() <= tolerance:
        raise UnsupportedModelError(
            f"{name} computes something else through the cache: its logits differ by {off[:_FIRST].max():.1e} of the"
            " largest one. It numbers positions in its own way, or attends otherwise than it says"
        )
    if not off[_FIRST:].max() <= tolerance:
        raise UnsupportedModelError(
            f"{name} keeps more between forwards than keys and values, or numbers positions in its own way: fed in"
            f" two chunks, its logits differ by {off[_FIRST:].max():.1e} of the largest one"
        )
    return [cache.shapes[layer] for layer in range(len(cache.layers))]
