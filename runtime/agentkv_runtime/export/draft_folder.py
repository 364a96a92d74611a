"""Export of an EAGLE-3 head to `draft.pte` and `draft.json`, beside the target that it drafts for."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.checks import check_rows, check_source, disk_errors
from agentkv_runtime.export.progress import Progress
from agentkv_runtime.export.target import choose_target
from agentkv_runtime.export.traced import TOOLS
from agentkv_runtime.export.versions import tool_versions
from agentkv_runtime.folder.draft_manifest import DRAFT_MANIFEST_NAME, DraftManifest
from agentkv_runtime.folder.manifest import Quantization, write_manifest
from agentkv_runtime.folder.model_folder import DRAFT_NAME, file_fingerprint, is_model_folder, read_model_folder
from agentkv_runtime.folder.small_files import read_object
from agentkv_runtime.folder.staging import install, staged
from agentkv_runtime.importing import few_collections

if TYPE_CHECKING:
    import torch

    from agentkv_runtime.export.draft_checkpoint import DraftCheckpoint

__all__ = ["export_draft"]


def export_draft(
    head: str | Path,
    target: str | Path,
    out: str | Path,
    *,
    quant: Quantization = "none",
    max_tokens: int = 512,
    max_logits: int = 64,
    progress: Progress | None = None,
) -> DraftManifest:
    """Exports the published EAGLE-3 head in `head` for `target` and writes `draft.pte` and `draft.json` into `out`.

    `target` is the Hugging Face folder of the model that the head was trained for, or, if the checkpoint has its own
    embedding, an exported model folder. `out` may be the model folder; its other files stay. One forward of the head
    takes up to `max_tokens` rows and returns up to `max_logits`. Heads run on the CPU backend for targets of every
    backend. The head is run once before it is put in place.

    Raises ExportError for a head that is damaged or does not fit the target or the model folder `out`, naming both
    sides, and for an `out` that cannot be written; then nothing is written.
    """
    head, out = Path(head), Path(out)
    tell = progress or (lambda _: None)
    choose_target("cpu", quant, "fp32")
    check_rows(max_tokens, max_logits)
    with disk_errors(out):
        sides = [_read_target(Path(target))]
        if is_model_folder(out) and out.resolve() != Path(target).resolve():
            sides.append(_read_target(out))
            _check_tokenizers(*sides)
        place = Path(os.path.realpath(out))  # what a link leads to
        if place.exists() and not place.is_dir():
            raise ExportError(f"{out}: exists and is no folder; it is left as it is. Give another folder")
        with staged(place) as staging:
            described = _write(head, sides, staging, _Options(quant, max_tokens, max_logits), tell)
            tell("putting it in place")
            install(staging, place, (DRAFT_NAME,), DRAFT_MANIFEST_NAME)
    return described


@dataclass(frozen=True)
class _Options:
    """Options of lowering a head, named like the parameters of `lower_draft_head`."""

    quant: Quantization
    max_tokens: int
    max_logits: int


@dataclass(frozen=True)
class _Target:
    """Properties of the target that a head must fit."""

    path: Path
    vocab_size: int
    feature_dim: int
    tokenizer: str


def _write(head: Path, sides: list[_Target], folder: Path, options: _Options, tell: Progress) -> DraftManifest:
    tell("loading torch")
    try:
        with few_collections():
            from agentkv_runtime.export.draft_checkpoint import EMBEDDING, find_embedding, read_draft_checkpoint
            from agentkv_runtime.export.first_run import run_head
            from agentkv_runtime.export.lower_draft import lower_draft_head
    except ImportError as error:
        raise ExportError(
            f"export needs torch and executorch, and {error.name or error} is not installed: "
            "pip install torch==2.13.0, then pip install 'agentkv-sdk[export]'"
        ) from error
    tell("loading the head")
    checkpoint = read_draft_checkpoint(head)
    for side in sides:
        _check_fit(checkpoint, side)
    if EMBEDDING not in checkpoint.weights and is_model_folder(sides[0].path):
        raise ExportError(
            f"{head}: the head takes its embedding from its target, and the program in {sides[0].path} does not give "
            "it out. Give the Hugging Face folder that it was exported from as the target"
        )
    embedding = checkpoint.weights.get(EMBEDDING)
    if embedding is None:
        embedding = find_embedding(sides[0].path)
        _check_embedding(checkpoint, sides[0], embedding)
    module = checkpoint.build(embedding)
    facts = module.config
    d2t = tuple(module.d2t.tolist()) if module.draft_vocab_size != facts.vocab_size or bool(module.d2t.any()) else ()
    try:
        lowered = lower_draft_head(module, **asdict(options), progress=tell)
    except (ExportError, OSError):
        raise
    except ValueError as error:
        raise ExportError(f"{head}: {error}") from error
    except Exception as error:  # of torch and executorch, in whatever way they fail
        raise ExportError(f"{head}: cannot be lowered: {type(error).__name__}: {error}") from error
    tell("writing the head")
    program = folder / DRAFT_NAME
    lowered.write(program)
    described = DraftManifest(
        quantization=options.quant,
        source=head.resolve().name,
        fingerprint=file_fingerprint(program),
        model_bytes=program.stat().st_size,
        hidden_dim=facts.hidden_size,
        feature_dim=checkpoint.feature_dim,
        draft_vocab_size=module.draft_vocab_size,
        target_vocab_size=facts.vocab_size,
        d2t=d2t,
        max_tokens=options.max_tokens,
        max_logits=options.max_logits,
        n_kv_heads=lowered.metadata.n_kv_heads,
        head_dim=lowered.metadata.head_dim,
        tokenizer_fingerprint=sides[0].tokenizer,
        exported_with=tool_versions(TOOLS),
    )
    write_manifest(described, folder / DRAFT_MANIFEST_NAME)
    tell("running it once")
    run_head(program, described)
    return described


def _read_target(path: Path) -> _Target:
    if is_model_folder(path):
        manifest = read_model_folder(path).manifest
        if manifest.features is None:
            raise ExportError(
                f"{path}: its program gives out no features for a draft head to read. Export it again: "
                "agentkv export SRC_FOLDER OUT_FOLDER --features"
            )
        if manifest.features.layers == (manifest.n_layers,):
            raise ExportError(
                f"{path}: its program gives out the features of its own multi-token prediction layer, which a draft "
                "head does not read. Export it again: agentkv export SRC_FOLDER OUT_FOLDER --features"
            )
        return _Target(path, manifest.vocab_size, manifest.feature_dim, file_fingerprint(path / "tokenizer.json"))
    check_source(path)
    config = read_object(path / "config.json", ExportError)
    config = config.get("text_config", config)
    try:
        vocab_size, width = int(config["vocab_size"]), 3 * int(config["hidden_size"])
    except KeyError as error:
        raise ExportError(f"{path}: its config.json does not say {error}") from error
    except (TypeError, ValueError) as error:
        raise ExportError(f"{path}: vocab_size and hidden_size in config.json must be integers ({error})") from error
    return _Target(path, vocab_size, width, file_fingerprint(path / "tokenizer.json"))


def _check_tokenizers(target: _Target, folder: _Target) -> None:
    if target.tokenizer != folder.tokenizer:
        raise ExportError(
            f"{folder.path} is no export of {target.path}: their tokenizer.json differ ({folder.tokenizer} and "
            f"{target.tokenizer})"
        )


def _check_fit(head: DraftCheckpoint, target: _Target) -> None:
    if head.config.vocab_size != target.vocab_size:
        raise ExportError(
            f"{head.path} drafts for a vocabulary of {head.config.vocab_size} tokens, and {target.path} has "
            f"{target.vocab_size}: the head belongs to another model"
        )
    if head.feature_dim != target.feature_dim:
        raise ExportError(
            f"{head.path} reads {head.feature_dim} features per row, and {target.path} gives out "
            f"{target.feature_dim}: the head belongs to another model"
        )


def _check_embedding(head: DraftCheckpoint, target: _Target, embedding: torch.Tensor) -> None:
    wanted = (head.config.vocab_size, head.config.hidden_size)
    if tuple(embedding.shape) != wanted:
        raise ExportError(
            f"{head.path} needs an embedding of {list(wanted)}, and {target.path} has one of {list(embedding.shape)}: "
            "the head belongs to another model"
        )
