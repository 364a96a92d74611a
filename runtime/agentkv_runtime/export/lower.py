"""From a transformers model to an ExecuTorch program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from transformers import PreTrainedModel

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export.blocks.importance import measure_importance
from agentkv_runtime.export.checks import check_bounds
from agentkv_runtime.export.experts import own_expert_layers
from agentkv_runtime.export.linears import replace_transposed_linears
from agentkv_runtime.export.memory import check_memory
from agentkv_runtime.export.norms import note_norm_widths
from agentkv_runtime.export.program import LoweredProgram, lower_methods
from agentkv_runtime.export.progress import Progress, Stage, reached
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.rotary import own_rotary
from agentkv_runtime.export.target import Lowering, choose_target
from agentkv_runtime.export.weight_sizes import note_sizes
from agentkv_runtime.folder.manifest import DType, FeatureInfo, Quantization
from agentkv_runtime.folder.metadata import MAX_HEAD_DIM, Kept, KvCacheMetadata, LayerShape
from agentkv_runtime.hf.blame import blame
from agentkv_runtime.hf.check import check_in_chunks, check_layers, reference_logits, short_windows
from agentkv_runtime.hf.convolution import conv_shape, short_conv
from agentkv_runtime.hf.deferred import loading_as_it_runs
from agentkv_runtime.hf.features import Features, feature_layers
from agentkv_runtime.hf.linear_attention import STATE_WINDOW, linear_attention, linear_shape
from agentkv_runtime.hf.op import update_and_attend
from agentkv_runtime.hf.own_positions import position_offset
from agentkv_runtime.hf.positions import long_factors, position_limit, trained_positions
from agentkv_runtime.hf.prepare import prepare
from agentkv_runtime.hf.selective_scan import scan_shape, selective_scan
from agentkv_runtime.hf.wrapper import CachedForward

__all__ = ["LoweredModel", "lower_model", "metadata_of", "ready_to_trace"]


@dataclass(frozen=True)
class LoweredModel(LoweredProgram):
    """A model's lowered program, and facts for its manifest."""

    vocab_size: int
    max_positions: int | None = None
    """Positions that the program can compute; None if the config names no length."""
    features: FeatureInfo | None = None
    trained_positions: int | None = None


def metadata_of(program: ExportedProgram, name: str) -> KvCacheMetadata:
    """Reads the cache's shape off the attention nodes. Raises UnsupportedModelError for widths that caches lack."""
    shapes: dict[int, LayerShape] = {}
    windows: dict[int, int] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is short_conv:
            x, weight, _, _, layer = node.args
            shapes[layer], windows[layer] = conv_shape(x.meta["val"].shape[2]), int(weight.meta["val"].shape[2])
        if node.op == "call_function" and node.target is linear_attention:
            _, k, v, decay, *_, layer = (getattr(arg, "meta", {}).get("val", arg) for arg in node.args)
            shapes[layer], windows[layer] = linear_shape(k, v, decay), STATE_WINDOW
        if node.op == "call_function" and node.target is selective_scan:
            x, _, _, b, *_, layer = (getattr(arg, "meta", {}).get("val", arg) for arg in node.args)
            shapes[layer], windows[layer] = scan_shape(x, b), STATE_WINDOW
        if node.op != "call_function" or node.target is not update_and_attend:
            continue
        args: Any = (*node.args, 0, 0)
        (_, k, v, _, layer), (window, chunk) = args[:5], args[7:9]
        k_shape, v_shape = k.meta["val"].shape, v.meta["val"].shape
        kept = Kept.LATENT if _is_start(v, k) else Kept.KEYS_AND_VALUES
        shape = LayerShape(int(k_shape[1]), int(k_shape[3]), int(v_shape[3]), kept)
        for dim in (shape.k_dim, shape.v_dim):
            if dim % 8 or dim > MAX_HEAD_DIM:
                raise UnsupportedModelError(f"{name}: head_dim {dim} is no multiple of 8 up to {MAX_HEAD_DIM}")
        looks_back = int(window or chunk)
        others = windows.get(layer, looks_back)  # of layers that attend to the same rows
        shapes[layer], windows[layer] = shape, max(looks_back, others) if looks_back and others else 0
    return KvCacheMetadata.of_layers(
        [shapes[layer] for layer in range(len(shapes))], [windows[layer] for layer in range(len(shapes))]
    )


def _is_start(values: Any, keys: Any) -> bool:
    """Whether values are the first numbers of keys."""
    if values.target is not torch.ops.aten.slice.Tensor or values.args[0] is not keys:
        return False
    dim, start = values.args[1], values.args[2]
    return dim in (-1, 3) and start == 0


def _trace(model: PreTrainedModel, max_tokens: int, max_logits: int, features: Sequence[int]) -> ExportedProgram:
    """Exports forward(tokens [T], position [T], logits_indices [N]) with T and N dynamic."""
    rows, logits = Dim("T", min=1, max=max_tokens), Dim("N", min=1, max=max_logits)
    example = (
        torch.zeros(2, dtype=torch.int64),
        torch.arange(2),
        torch.zeros(2, dtype=torch.int64),
    )
    forward = CachedForward(model, features)
    try:
        traced = torch.export.export(forward, example, dynamic_shapes=({0: rows}, {0: rows}, {0: logits}), strict=False)
    except ExportError:
        raise
    except Exception as error:  # whatever the model's own code raises when it meets sizes that are not numbers
        raise UnsupportedModelError(f"torch cannot trace {model.config.model_type}{blame(error, model)}") from error
    check_layers(model.config.get_text_config(), forward.attended)
    return traced


@contextmanager
def _attention_restored(model: PreTrainedModel) -> Iterator[None]:
    config = model.config
    before = config._attn_implementation
    try:
        yield
    finally:
        config._attn_implementation = before


def _measured(share: float) -> None:
    reached(Stage.MEASURING, share)


@contextmanager
def ready_to_trace(
    model: PreTrainedModel,
    recipe: Recipe,
    lowering: Lowering,
    dtype: DType,
    max_context: int | None,
    calibration: torch.Tensor | None,
    tell: Progress,
) -> Iterator[None]:
    """Tries a model by itself and through a cache, and rewrites it into one that may be traced in the block.

    Raises UnsupportedModelError or QuantizationError.
    """
    if model.get_experts_implementation()[""] is not None:
        model.set_experts_implementation("eager")  # what ours are compared with
    model.requires_grad_(False)  # which programs record
    prepare(model)
    replace_transposed_linears(model)
    with _attention_restored(model), ExitStack() as rotated:
        with loading_as_it_runs(model), short_windows(model):
            want = reference_logits(model)
        if calibration is not None:
            tell("measuring which weights count")
            own_expert_layers(model)
            with loading_as_it_runs(model):
                recipe = replace(recipe, importance=measure_importance(model, calibration, _measured))
        tell("trying the model")
        reached(Stage.TRYING)
        with loading_as_it_runs(model):
            note_norm_widths(model, lambda: reference_logits(model))
            reached(Stage.TRYING, 0.2)
            rotated.enter_context(own_rotary(model, max_context))
            reached(Stage.TRYING, 0.6)
            if not long_factors(model.config.get_text_config(), max_context):
                with short_windows(model):
                    check_in_chunks(model, want)
        note_sizes(model, recipe, dtype)
        lowering.prepare(model, recipe, dtype)
        tell("tracing the model")
        reached(Stage.TRACING)
        yield


@torch.no_grad()
def lower_model(
    model: PreTrainedModel,
    *,
    backend: str = "cpu",
    quant: Quantization | Recipe = "none",
    dtype: DType = "fp32",
    max_tokens: int = 512,
    max_logits: int = 64,
    max_context: int | None = None,
    features: Features = "none",
    calibration: torch.Tensor | None = None,
    progress: Progress | None = None,
) -> LoweredModel:
    """Lowers a float32 causal language model to one program for a backend. The model cannot be used afterwards.

    Deferred parameters are loaded where their values are needed and dropped after it; the recipe has their sizes at the
    end and, where they are quantised, their relative errors.

    One forward takes 1 to `max_tokens` rows and returns the logits of 1 to `max_logits` of them. A history may have
    `max_positions` of the result; `max_context` lowers that, and lets long-rope models go beyond their original context
    (see `position_limit`). With `features` a forward also returns the residual stream after some layers, `[T, F]`,
    which draft heads read. Weights and activations become `dtype`; logits and features stay float32. `calibration`,
    windows `[W, T]` of tokens, is the text on which the costs of errors are measured. Before lowering, the model is run
    on a few tokens, by itself and through a cache.

    Raises UnsupportedModelError, naming the reason; QuantizationError; or ExportError for bounds below 2 or so large
    that one value takes more than 4 GiB, and for options that the backend lacks.
    """
    tell = progress or (lambda _: None)
    recipe = quant if isinstance(quant, Recipe) else Recipe(quant)
    lowering = choose_target(backend, recipe.quant, dtype).lowering()
    config = model.config.get_text_config()
    max_positions = position_limit(config, max_context, position_offset(model))
    layers = feature_layers(config.num_hidden_layers, features)
    check_bounds(max_tokens, max_logits)
    with ready_to_trace(model, recipe, lowering, dtype, max_context, calibration, tell):
        traced = _trace(model, max_tokens, max_logits, layers)
    check_memory(config.model_type, traced, max_tokens, max_logits)
    metadata = metadata_of(traced, config.model_type)
    lowered = lower_methods({"forward": traced}, metadata, lowering, tell)
    info = FeatureInfo(layers=layers, width=len(layers) * config.hidden_size) if layers else None
    return LoweredModel(
        lowered.program,
        metadata,
        lowered.delegate_calls,
        config.vocab_size,
        max_positions,
        info,
        trained_positions(config),
    )
