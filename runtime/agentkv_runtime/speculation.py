"""Drafters over programs, a smaller model or an EAGLE head, checked against their target."""

from __future__ import annotations

from pathlib import Path

from agentkv_runtime import _core
from agentkv_runtime._core import (
    AcceptanceRates,
    Drafter,
    EagleDrafter,
    ExecuTorchHead,
    MixedDrafter,
    ModelDrafter,
    PromptLookup,
    PythonDrafter,
    SuffixDrafter,
)
from agentkv_runtime.backends import BACKENDS
from agentkv_runtime.errors import DraftMismatchError, ModelFolderError
from agentkv_runtime.folder.draft_manifest import DraftManifest, read_draft_manifest
from agentkv_runtime.folder.model_folder import DRAFT_NAME, MTP_NAME, ModelFolder, file_fingerprint, read_model_folder
from agentkv_runtime.folder.verified import remembered_fingerprint
from agentkv_runtime.programs import load_folder, load_head

__all__ = [
    "Drafter",
    "EagleDrafter",
    "MixedDrafter",
    "ModelDrafter",
    "PromptLookup",
    "PythonDrafter",
    "SuffixDrafter",
    "open_draft_model",
    "open_eagle",
    "open_mtp",
]


def open_draft_model(
    path: str | Path,
    target: ModelFolder,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    max_sequences: int = 256,
    width: int = 8,
    top_k: int = 8,
    verify: bool = True,
) -> ModelDrafter:
    """Opens a drafter over the model folder at `path`, with a cache of `capacity` cells of its own.

    Per branch and level of a draft, the `width` most likely nodes are run and get `top_k` children each. A `kv_dtype`
    that only other backends have becomes fp16, as a draft's precision changes no output. Embeddings may be padded to
    different sizes; padded ids are never proposed. Raises DraftMismatchError for a model with another vocabulary than
    `target`, ModelFolderError for an unusable folder or an invalid option.
    """
    folder = read_model_folder(path)
    sides = f"the draft model {folder.path} and its target {target.path}"
    _check_tokenizers(folder, target, sides)
    program = load_folder(folder, verify=verify)
    try:
        session = program.make_session(
            capacity=capacity,
            kv_dtype=_kv_dtype_on(folder.manifest.backend, kv_dtype),
            min_chunk=min_chunk,
            max_sequences=max_sequences,
        )
        return ModelDrafter(session, width=width, top_k=top_k, vocab_size=_shared_tokens(folder, target))
    except _core.Error as error:
        raise ModelFolderError(f"{folder.path}: no drafter can be made: {error}") from error


def open_eagle(
    path: str | Path | None,
    target: ModelFolder,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    max_sequences: int = 256,
    width: int = 8,
    top_k: int = 8,
    verify: bool = True,
) -> EagleDrafter:
    """Opens a drafter over an EAGLE-3 head, with a cache of `capacity` cells of its own.

    `path` is a folder with draft.pte and draft.json, or a .pte next to its .json; None is the target's own folder. The
    other options are those of `open_draft_model`. Raises DraftMismatchError for a head that is missing or was made for
    another model than `target`, ModelFolderError for an unusable file or an invalid option.
    """
    program_path, manifest = _find_head(target.path if path is None else Path(path), target)
    return _open_head(
        program_path,
        manifest,
        target,
        capacity=capacity,
        kv_dtype=kv_dtype,
        min_chunk=min_chunk,
        max_sequences=max_sequences,
        width=width,
        top_k=top_k,
        verify=verify,
    )


def open_mtp(
    target: ModelFolder, *, capacity: int, kv_dtype: str = "fp16", width: int = 8, top_k: int = 8, depth: int = 0
) -> EagleDrafter:
    """Opens a drafter over the multi-token prediction layer in the folder of `target`, with cells of its own.

    `depth` is the most levels of a draft, 0 for as many as pay; the other options are those of `open_draft_model`.
    Raises DraftMismatchError for a folder without such a layer, ModelFolderError for an unusable file or an invalid
    option.
    """
    path = target.mtp_path
    if path is None:
        raise DraftMismatchError(
            f"{target.path} has no {MTP_NAME}, so it has no multi-token prediction layer to draft with. Export it "
            "again with --mtp if its checkpoint has one (DeepSeek-V3, GLM-4.5, Qwen3-Next), or draft with Suffix"
        )
    manifest = read_draft_manifest(_manifest_of(path))
    return _open_head(
        path, manifest, target, capacity=capacity, kv_dtype=kv_dtype, width=width, top_k=top_k, depth=depth
    )


def _open_head(
    program_path: Path,
    manifest: DraftManifest,
    target: ModelFolder,
    *,
    capacity: int,
    kv_dtype: str,
    min_chunk: int = 256,
    max_sequences: int = 256,
    width: int,
    top_k: int,
    depth: int = 0,
    verify: bool = True,
) -> EagleDrafter:
    _check_head(program_path, manifest, target)
    if verify and remembered_fingerprint(program_path, file_fingerprint) != manifest.fingerprint:
        raise ModelFolderError(
            f"{program_path}: damaged or replaced: it is not the program that {_manifest_of(program_path).name} "
            "describes. Copy it again or export the draft head again"
        )
    try:
        head = load_head(program_path)
        _check_agreement(head, manifest)
        session = head.make_session(
            capacity=capacity,
            kv_dtype=_kv_dtype_on("cpu", kv_dtype),
            min_chunk=min_chunk,
            max_sequences=max_sequences,
        )
        drafter = EagleDrafter(session, manifest.d2t, manifest.target_vocab_size, width=width, top_k=top_k, depth=depth)
    except _core.ProgramError as error:
        raise ModelFolderError(str(error)) from error
    except _core.Error as error:
        raise ModelFolderError(f"{program_path}: no drafter can be made: {error}") from error
    if manifest.acceptance is not None:
        drafter.prior = AcceptanceRates(manifest.acceptance.levels, manifest.acceptance.calibration)
    return drafter


def _kv_dtype_on(backend: str, kv_dtype: str) -> str:
    known = {name for each in BACKENDS.values() for name in each.kv_dtypes}
    return "fp16" if kv_dtype in known.difference(BACKENDS[backend].kv_dtypes) else kv_dtype


def _find_head(path: Path, target: ModelFolder) -> tuple[Path, DraftManifest]:
    program = path / DRAFT_NAME if path.is_dir() else path
    if program.suffix != ".pte" or not program.is_file():
        raise DraftMismatchError(
            f"{path} has no {DRAFT_NAME}, so there is no draft head for {target.path}. Give the folder that "
            "`agentkv export-draft` wrote, or draft with Suffix"
        )
    return program, read_draft_manifest(_manifest_of(program))


def _manifest_of(program: Path) -> Path:
    return program.with_suffix(".json")


def _check_head(path: Path, head: DraftManifest, target: ModelFolder) -> None:
    sides = f"the draft head {path} and its target {target.path}"
    if target.manifest.features is None:
        raise DraftMismatchError(
            f"the draft head {path} reads features of its target, and {target.path} gives out none: export it again "
            "with --features"
        )
    if head.feature_dim != target.manifest.features.width:
        raise DraftMismatchError(
            f"{sides} differ in their features: the head reads {head.feature_dim} per row, the target gives out "
            f"{target.manifest.features.width}. Give the head of this model, or export the model again: with "
            "--features for an EAGLE head, with --mtp for its own layer"
        )
    if head.target_vocab_size != target.manifest.vocab_size:
        raise DraftMismatchError(
            f"{sides} differ in their vocabularies: the head drafts for one of {head.target_vocab_size} tokens, the "
            f"target has {target.manifest.vocab_size}. Give the head of this model"
        )
    tokenizer = file_fingerprint(target.path / "tokenizer.json")
    if head.tokenizer_fingerprint != tokenizer:
        raise DraftMismatchError(
            f"{sides} differ in their tokenizers: the head was exported for {head.tokenizer_fingerprint}, the target "
            f"has {tokenizer}. Give the head of this model, or export it again for this folder"
        )


def _check_agreement(head: ExecuTorchHead, manifest: DraftManifest) -> None:
    declared = {
        "vocab_size": manifest.draft_vocab_size,
        **{
            name: getattr(manifest, name)
            for name in ("max_tokens", "max_logits", "feature_dim", "hidden_dim", "n_kv_heads", "head_dim")
        },
    }
    if head.info != declared:
        raise ModelFolderError(
            f"{head.path}: {_manifest_of(Path(head.path)).name} and the program describe different heads ({declared} "
            f"and {head.info}). Export the draft head again"
        )


def _shared_tokens(draft: ModelFolder, target: ModelFolder) -> int:
    """Number of tokens that both models have, without the padding of embeddings beyond the tokenizer."""
    return min(draft.manifest.vocab_size, target.manifest.vocab_size, target.tokenizer.vocab_size)


def _check_tokenizers(draft: ModelFolder, target: ModelFolder, sides: str) -> None:
    if file_fingerprint(draft.path / "tokenizer.json") == file_fingerprint(target.path / "tokenizer.json"):
        return
    size = _shared_tokens(draft, target)
    theirs, ours = draft.tokenizer.token_bytes(size)[:size], target.tokenizer.token_bytes(size)[:size]
    for token, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        if one != other:
            raise DraftMismatchError(
                f"{sides} have different tokenizers, of {draft.tokenizer.vocab_size} and {target.tokenizer.vocab_size} "
                f"tokens: token {token} is {one!r} and {other!r}. Give a draft model of the same family"
            )
    special, own = ([i for i in each.tokenizer.special_ids if i < size] for each in (draft, target))
    if special != own:
        raise DraftMismatchError(
            f"{sides} have different tokenizers: special tokens {special} and {own}. Give a draft model of the same "
            "family"
        )
