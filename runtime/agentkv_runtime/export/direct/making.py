"""Export without torch: decides which models can be written directly, and writes their programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentkv_runtime._core import InvalidTensor
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export.asked import Options, Source
from agentkv_runtime.export.block_kinds import kind_and_bits
from agentkv_runtime.export.checks import check_value
from agentkv_runtime.export.choices import OWN_BLOCKS
from agentkv_runtime.export.direct.decoder import EMBEDDING, HEAD, Decoder, Weights
from agentkv_runtime.export.direct.hf_folder import QuantizedWeights
from agentkv_runtime.export.direct.writing import write_program
from agentkv_runtime.export.made import EMBEDDING_TITLE, Made, WeightFacts
from agentkv_runtime.export.progress import Progress, Stage, reached
from agentkv_runtime.folder.model_folder import MODEL_NAME
from agentkv_runtime.hf.plain_config import plain_config
from agentkv_runtime.hf.positions import long_factors, position_limit, trained_positions

__all__ = ["find_decoder", "write_directly"]

_TOOLS = ("agentkv-sdk",)


def find_decoder(source: Source, options: Options) -> tuple[Decoder | None, str]:
    """The decoder of a model that can be written without torch; None and the reason for one that torch has to trace.

    For the CPU these are GGUF files in their own blocks, and safetensors folders quantised by the fixed recipe. Raises
    ExportError for a damaged folder.
    """
    if (why := _asks_for_torch(source, options)) is not None:
        return None, f"{why} takes torch"
    try:
        weights: Weights
        if source.gguf is not None:
            config, weights = source.gguf.config, source.gguf.weights()
        else:
            config = plain_config(source.described)
            weights = QuantizedWeights(source.weights, config, options.quant)
        return _decoder(source, config, weights, options), ""
    except UnsupportedModelError as error:
        return None, f"{error}, so it is traced with torch"


def _decoder(source: Source, config: Mapping[str, Any], weights: Weights, options: Options) -> Decoder:
    long = long_factors(SimpleNamespace(**config), options.max_context)
    try:
        return Decoder(config, weights, long)
    except ValueError as error:  # of settings that mean nothing
        raise ExportError(f"{source.weights}: {error}. Download the whole model") from error


def _asks_for_torch(source: Source, options: Options) -> str | None:
    """The first option that needs torch; None if there is none."""
    quants = ("file",) if source.gguf is not None else OWN_BLOCKS
    asked = {
        f"the backend {options.backend}": options.backend != "cpu",
        f"the quantisation {options.quant}": options.quant not in quants,
        "a draft head's features": options.features != "none",
        "measuring which weights count": options.recipe == "measured",
        "an adapter": source.adapter is not None,
        "a language model in another": source.gguf is None and source.described != source.weights,
    }
    return next((what for what, is_so in asked.items() if is_so), None)


def write_directly(decoder: Decoder, source: Source, folder: Path, options: Options, tell: Progress) -> Made:
    """Writes the program of a decoder into a folder. Raises ExportError."""
    config = SimpleNamespace(**decoder.config)
    max_positions = position_limit(config, options.max_context)
    quantized = options.quant in OWN_BLOCKS
    tell("choosing bits" if quantized else "laying out the weights")
    reached(Stage.CHOOSING if quantized else Stage.LAYING_OUT)
    facts = _facts(decoder, source.weights)
    check_value("a layer", 4 * options.max_tokens * decoder.widest, "max_tokens", options.max_tokens)
    check_value("the head", 4 * options.max_logits * decoder.vocab_size, "max_logits", options.max_logits)
    if quantized:
        tell("quantising the weights")
    try:
        linears = write_program(
            decoder,
            folder / MODEL_NAME,
            options.max_tokens,
            options.max_logits,
            lambda share: reached(Stage.LAYING_OUT, share),
        )
    except InvalidTensor as error:
        raise ExportError(f"{source.weights}: {error}: its file is broken. Download it again") from error
    facts.errors.update(decoder.errors())
    return Made(
        metadata=decoder.metadata,
        vocab_size=decoder.vocab_size,
        max_positions=max_positions,
        trained_positions=trained_positions(config),
        features=None,
        weights=facts,
        recipe="fixed" if quantized else None,
        made_with=_TOOLS,
        linears=linears,
    )


def _facts(decoder: Decoder, path: Path) -> WeightFacts:
    """Facts about the weights for the manifest. Raises ExportError for block types that the kernels lack."""
    facts = WeightFacts()
    for layer, blocks in decoder.layers.items():
        name = EMBEDDING_TITLE if layer == EMBEDDING else layer
        facts.types[name], facts.bits[name] = kind_and_bits(f"{path}: {name}", blocks.type)
        if layer == HEAD and decoder.tied:  # the program has it once
            continue
        facts.counts[name] = math.prod(blocks.shape)
        facts.bytes[name] = math.prod(blocks.shape[:-1]) * blocks.row_bytes
    return facts
