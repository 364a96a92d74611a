"""Export of a checkpoint's own multi-token prediction layer, as `mtp.pte` and `mtp.json` beside the model's program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentkv_runtime.backends import BACKENDS
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.asked import Options, Source
from agentkv_runtime.export.checks import needs
from agentkv_runtime.export.progress import Progress
from agentkv_runtime.export.quiet import quiet_libraries
from agentkv_runtime.export.traced import TOOLS, named_errors
from agentkv_runtime.export.versions import tool_versions
from agentkv_runtime.export.waiting import wait_asleep
from agentkv_runtime.folder.draft_manifest import MTP_MANIFEST_NAME, DraftManifest
from agentkv_runtime.folder.manifest import Quantization, write_manifest
from agentkv_runtime.folder.model_folder import MTP_NAME, file_fingerprint
from agentkv_runtime.folder.next_token_names import NextTokenNames, find_next_token
from agentkv_runtime.folder.small_files import read_object
from agentkv_runtime.hf.tensors import open_tensors
from agentkv_runtime.notes import note

if TYPE_CHECKING:
    from agentkv_runtime.export.first_run import Rows
    from agentkv_runtime.hf.next_token import NextTokenModel

__all__ = ["MTP_FILES", "find_layer", "write_layer"]

MTP_FILES = (MTP_NAME, MTP_MANIFEST_NAME)
_OF_BITS: dict[str, Quantization] = {"affine4": "q4", "affine8": "q8"}  # on the CPU, which runs layers of all models


def find_layer(source: Source, options: Options) -> NextTokenNames | None:
    """The multi-token prediction layer to export with a model; None if there is none, or it is to be left out.

    Raises ExportError where it has to be exported, and cannot.
    """
    if options.mtp is False or (options.mtp is None and options.features != "none"):
        return None
    if options.mtp and options.features != "none":
        raise ExportError(
            "a program gives out the features of EAGLE-3 heads or those of its multi-token prediction layer: ask for "
            "one of them"
        )
    found = _find(source)
    if found is None and options.mtp:
        raise ExportError(
            f"{source.weights}: has no multi-token prediction layer (nextn or mtp) that agentkv reads. Leave mtp out, "
            "or draft with kv.spec.Suffix"
        )
    return found


def _find(source: Source) -> NextTokenNames | None:
    if source.gguf is not None:
        return None
    try:
        names = open_tensors(source.weights).keys()
    except ExportError:  # of a damaged file, which the model's own export tells of
        return None
    config = read_object(source.described / "config.json", ExportError)
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("num_hidden_layers")
    return find_next_token(names, layers) if isinstance(layers, int) else None


def write_layer(layer: NextTokenNames, source: Source, folder: Path, options: Options, tell: Progress) -> bool:
    """Writes the layer's program into a folder, after running it once.

    Returns False, after a note that says why, if it cannot be exported and does not have to. Raises ExportError.
    """
    tell("exporting its multi-token prediction layer")
    wait_asleep()
    try:
        with quiet_libraries(), named_errors(source.weights, "its multi-token prediction layer cannot be exported"):
            _write(layer, source, folder, options, tell)
    except (ExportError, ImportError) as error:
        why = needs(error.name or error) if isinstance(error, ImportError) else str(error)
        for name in MTP_FILES:
            (folder / name).unlink(missing_ok=True)
        if options.mtp:
            raise ExportError(why) from error
        note(f"Exported without its multi-token prediction layer: {why}")
        return False
    return True


def _write(layer: NextTokenNames, source: Source, folder: Path, options: Options, tell: Progress) -> None:
    from agentkv_runtime.export.first_run import run_head
    from agentkv_runtime.export.lower_next_token import lower_next_token
    from agentkv_runtime.hf.load import read_config
    from agentkv_runtime.hf.next_token import load_next_token

    config = read_config(source.described).get_text_config()
    model = load_next_token(source.weights, layer, config)
    expected = _logits(model, config.hidden_size)
    quant = _OF_BITS.get(options.quant, options.quant)
    assert quant in BACKENDS["cpu"].quantizations, "every backend's bits have a counterpart"
    lowered = lower_next_token(
        model, quant=quant, max_tokens=options.max_tokens, max_logits=options.max_logits, progress=tell
    )
    del model
    program = folder / MTP_NAME
    lowered.write(program)
    described = DraftManifest(
        kind="mtp",
        quantization=quant,
        source=source.name or source.weights.resolve().name,
        fingerprint=file_fingerprint(program),
        model_bytes=program.stat().st_size,
        hidden_dim=config.hidden_size,
        feature_dim=config.hidden_size,
        draft_vocab_size=config.vocab_size,
        target_vocab_size=config.vocab_size,
        max_tokens=options.max_tokens,
        max_logits=options.max_logits,
        n_kv_heads=lowered.metadata.n_kv_heads,
        head_dim=lowered.metadata.head_dim,
        tokenizer_fingerprint=file_fingerprint(source.described / "tokenizer.json"),
        exported_with=tool_versions(TOOLS),
    )
    write_manifest(described, folder / MTP_MANIFEST_NAME)
    run_head(program, described, expected)


def _logits(model: NextTokenModel, width: int) -> Rows:
    """The layer's logits for the probe of `run_head`, `[2, vocabulary]`."""
    import torch

    from agentkv_runtime.export.first_run import probe_features
    from agentkv_runtime.hf.next_token import mixing

    with torch.no_grad(), mixing(model.target_norm(torch.from_numpy(probe_features(width)))):
        logits: Rows = model(torch.arange(2)[None], use_cache=False).logits[0].numpy()
    return logits
