"""Export of a model to a model folder: the program, its tokenizer and its manifest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentkv_runtime.errors import ExportError, TokenizerError
from agentkv_runtime.export.asked import Options, Source
from agentkv_runtime.export.checks import check_rows, check_source, check_target, disk_errors
from agentkv_runtime.export.choices import OWN_BLOCKS, check_quantization
from agentkv_runtime.export.direct.making import find_decoder, write_directly
from agentkv_runtime.export.first_run import probe_tokens, run_model
from agentkv_runtime.export.made import Made
from agentkv_runtime.export.next_token import MTP_FILES, find_layer, write_layer
from agentkv_runtime.export.progress import (
    DIRECT,
    MEASURED,
    QUANTIZED,
    TRACED,
    Done,
    Progress,
    Stage,
    model_size,
    sharing,
)
from agentkv_runtime.export.target import choose_target, usual_quantization
from agentkv_runtime.export.traced import trace_program
from agentkv_runtime.export.versions import tool_versions
from agentkv_runtime.folder.manifest import (
    MANIFEST_NAME,
    DType,
    Manifest,
    Quantization,
    Scales,
    WeightRecipe,
    first_fault,
    write_manifest,
)
from agentkv_runtime.folder.model_folder import (
    MODEL_NAME,
    ModelFolder,
    file_fingerprint,
    read_model_folder,
    read_tokenizer,
)
from agentkv_runtime.folder.printable import path_text
from agentkv_runtime.folder.small_files import read_object
from agentkv_runtime.folder.staging import install, staged
from agentkv_runtime.formats import format_name
from agentkv_runtime.sources.adapter_config import read_adapter_config
from agentkv_runtime.sources.source import described, is_gguf
from agentkv_runtime.text.tokenizer import TOKENIZER_FILES, Tokenizer

__all__ = ["export_folder"]


def export_folder(
    src: str | Path,
    out: str | Path,
    *,
    backend: str = "cpu",
    quant: Quantization | None = None,
    scales: Scales = "search",
    int8: Sequence[str] = (),
    embedding: int = 16,
    dtype: DType = "fp32",
    max_tokens: int = 512,
    max_logits: int = 64,
    max_context: int | None = None,
    features: bool = False,
    mtp: bool | None = None,
    calibrate: str | Path | None = None,
    recipe: WeightRecipe | None = None,
    adapter: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    done: Done | None = None,
) -> ModelFolder:
    """Exports the model `src` for a backend, "cpu" or "mlx", and writes the model folder `out`.

    `src` is a Hugging Face folder or a GGUF file. `adapter` is the folder of a LoRA adapter, as peft writes it, which
    is merged into the weights. `name` is the model's name in the manifest, by default that of its config or of `src`.

    `out` appears at the end and complete, or not at all. In a model folder of agentkv the model's own files are
    replaced and all others stay, a draft head too; programs that have it open go on using the old files, as new ones
    are renamed into place. If this machine has the backend, the program is run and compared with the model first.

    One forward of the program takes up to `max_tokens` rows and returns the logits of up to `max_logits`; memory for
    both is reserved at load, so both are 2 to 8,192. A history may have the positions in the manifest, `max_context`
    at most; a long-rope model goes beyond its original context only with a `max_context` above it, and then rotates
    short histories by its long factors, too. With `features` it also returns the features of EAGLE-3 draft heads.
    A checkpoint's own multi-token prediction layer becomes a second program, `mtp.pte`, which drafts from features of
    its own: with `mtp` of True it has to, with False it is left out, and by default it is exported if that is possible
    and there are no other features. Activations, and weights that are not quantised, become `dtype`.

    `quant` of "file" runs the blocks of a GGUF file, and is the default for such a file without an adapter. The CPU
    runs them unchanged, with activations in 8 bits per block of inputs. MLX runs the codes of types with a scale per 32
    numbers, and converts others to new codes of 8 bits. "q4", "q5", "q6" and "q8" make such blocks of any weights, of
    the types with the least loss for a number of bits on average. The cost of an error in each weight is a usual one (a
    `recipe` of "fixed"), or measured (of "measured") on the text in the file `calibrate`, by default one that ships
    with Python. By default, models that are written without torch use the fixed recipe, and others the measured one.
    "q4" is the default of other models for the CPU, "affine4" of those for MLX; "none" quantises nothing.

    `scales` is the method for scales of 4-bit weights: "search" for the least error of each group, "largest" to round
    to nearest. With 8da4w the linear layers whose names match a pattern of `fnmatch` in `int8` get 8 bits, and with
    "auto" those with the largest errors, up to a sixteenth of all weights; `embedding` is the bits of the token
    embedding, 16, 8 or 4. The manifest records bits and relative error of each weight.

    `progress` gets a few words about each step that begins, and `done` the estimated share of the time that is over, 0
    to 1.

    GGUF files in their own blocks, and safetensors folders of a family in `direct.decoder.FAMILIES`, are written
    without torch for the CPU. Other models are read, packed and dropped a part at a time if the folder has them as
    safetensors under transformers' names; other checkpoints are loaded as a whole first.

    Raises ExportError for a quantisation or dtype that the backend lacks, for a folder without a model or a working
    tokenizer, for an `out` that is something else or cannot be written, and for a model that cannot be exported or
    whose program computes something else.
    """
    src, out = Path(src), Path(out)
    tell = progress or (lambda _: None)
    quant = quant or usual_quantization(backend, own_bits=adapter is None and is_gguf(src))
    choose_target(backend, quant, dtype)
    check_quantization(quant, src, adapter, tuple(int8), embedding, scales, calibrate, recipe)
    check_rows(max_tokens, max_logits)
    if adapter is not None:
        read_adapter_config(Path(adapter))  # before anything takes long
    place = Path(os.path.realpath(out))  # what a link leads to
    with disk_errors(out), described(src) as words:
        check_source(src)
        try:
            tokenizer = read_tokenizer(words.folder, words.library)
        except TokenizerError as error:
            raise ExportError(str(error)) from error
        check_target(place)
        with staged(place) as staging:
            options = Options(
                quant=quant,
                scales=scales,
                int8=tuple(int8),
                embedding=embedding,
                backend=backend,
                dtype=dtype,
                max_tokens=max_tokens,
                max_logits=max_logits,
                max_context=max_context,
                features="eagle" if features else "none",
                mtp=mtp,
                calibrate=Path(calibrate) if calibrate else None,
                recipe="measured" if calibrate else recipe,
            )
            source = Source(src, words.folder, words.gguf, Path(adapter) if adapter else None, name or "")
            _write(source, staging, tokenizer, options, tell, done)
            tell("putting it in place")
            install(staging, place, (MODEL_NAME, *MTP_FILES, *TOKENIZER_FILES), MANIFEST_NAME)
    return read_model_folder(out)


def _write(
    source: Source, folder: Path, tokenizer: Tokenizer, options: Options, tell: Progress, done: Done | None
) -> None:
    config = read_object(source.described / "config.json", ExportError)
    tokens = probe_tokens(tokenizer, _vocab_size(config))
    layer = find_layer(source, options)
    if layer is not None and write_layer(layer, source, folder, options, tell):
        options = replace(options, features="mtp")
    decoder, why = find_decoder(source, options)
    with ExitStack() as shared:
        if done is not None:
            stages = _stages(source, options, directly=decoder is not None)
            shared.enter_context(sharing(done, *model_size(source.weights, source.described), stages))
        if decoder is None:
            made, expected = trace_program(source, folder, tokenizer, options, tokens, why, tell)
        else:
            made, expected = write_directly(decoder, source, folder, options, tell), None
    for name in TOKENIZER_FILES:
        if (source.described / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source.described / name, folder / name)
    _keep_ends(folder / "generation_config.json", config)
    try:
        manifest = _manifest(source, folder, config, made, options, format_name(tokenizer))
    except ValidationError as error:  # a number that no manifest can hold
        raise ExportError(
            f"{source.weights}: its config describes a model that agentkv cannot hold: {first_fault(error)}"
        ) from error
    write_manifest(manifest, folder / MANIFEST_NAME)
    tell("running it once")
    run_model(read_model_folder(folder), tokens, expected, tell)


def _stages(source: Source, options: Options, *, directly: bool) -> tuple[Stage, ...]:
    if directly:
        return DIRECT if source.gguf is not None else QUANTIZED
    return MEASURED if options.quant in OWN_BLOCKS and options.recipe != "fixed" else TRACED


def _vocab_size(config: dict[str, Any]) -> int:
    text = config.get("text_config")
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    return size if isinstance(size, int) else 1


def _keep_ends(path: Path, config: dict[str, Any]) -> None:
    # Older models say in config.json alone which tokens end a generation.
    ends = config.get("eos_token_id")
    if ends is not None and not path.is_file():
        path.write_text(json.dumps({"eos_token_id": ends}) + "\n", encoding="utf-8")


def _manifest(
    source: Source,
    folder: Path,
    config: dict[str, Any],
    made: Made,
    options: Options,
    call_format: str,
) -> Manifest:
    metadata = made.metadata
    return Manifest(
        backend=options.backend,
        quantization=options.quant,
        dtype=options.dtype,
        source=source.name or str(config.get("_name_or_path") or path_text(source.weights.resolve().name)),
        model_type=str(config.get("model_type", "unknown")),
        fingerprint=file_fingerprint(folder / MODEL_NAME),
        model_bytes=(folder / MODEL_NAME).stat().st_size,
        vocab_size=made.vocab_size,
        max_tokens=options.max_tokens,
        max_logits=options.max_logits,
        max_positions=made.max_positions,
        trained_positions=made.trained_positions,
        n_layers=metadata.n_layers,
        n_kv_heads=metadata.n_kv_heads,
        head_dim=metadata.head_dim,
        windows=metadata.windows,
        shapes=metadata.shapes,
        features=made.features,
        call_format=call_format,
        weight_errors={name: float(f"{error:.3g}") for name, error in made.weights.errors.items()},
        weight_bits=made.weights.bits,
        weight_counts=made.weights.counts,
        weight_bytes=made.weights.bytes,
        weight_types=made.weights.types,
        weight_recipe=made.recipe,
        linears=made.linears,
        exported_with=tool_versions(made.made_with),
    )
