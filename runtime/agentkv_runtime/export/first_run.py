"""The first run of an exported program, before it is put in place: an export fails if its program cannot be opened or
disagrees with its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentkv_runtime import _core
from agentkv_runtime.backends import load_backend
from agentkv_runtime.errors import BackendError, ExportError, ModelFolderError
from agentkv_runtime.export.progress import Progress
from agentkv_runtime.folder.draft_manifest import DraftManifest
from agentkv_runtime.folder.model_folder import ModelFolder
from agentkv_runtime.programs import load_head, open_session
from agentkv_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

__all__ = ["model_logits", "probe_features", "probe_tokens", "run_head", "run_model"]

_TEXT = "The quick brown fox jumps over the lazy dog."
_N_TOKENS = 8
_MOST_ERROR = 1e-3  # of float32 programs, beside the largest logit: sums in another order make some 1e-6
_LEAST_AGREEMENT = 0.5  # of others, see _agreement

Rows = npt.NDArray[np.float32]


def probe_tokens(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The first 1 to 8 tokens of a sentence that are below `vocab_size`."""
    return [token for token in tokenizer.encode(_TEXT) if token < vocab_size][:_N_TOKENS] or [0]


def model_logits(model: PreTrainedModel, tokens: list[int]) -> Rows:
    """Transformers' own logits after each token, `[T, vocabulary]`. Raises ExportError unless they are finite."""
    import torch

    name = model.config.model_type
    try:
        with torch.no_grad():
            out = model(input_ids=torch.tensor([tokens]), use_cache=False)
    except Exception as error:  # any of the model's own code
        raise ExportError(f"transformers itself cannot run this {name}: {type(error).__name__}: {error}") from error
    logits: Rows = out.logits[0].float().numpy()
    if not np.isfinite(logits).all():
        raise ExportError(f"the logits of this {name} are not finite in transformers itself: its weights are damaged")
    return logits


def run_model(folder: ModelFolder, tokens: list[int], expected: Rows | None, tell: Progress) -> None:
    """Opens an exported model as a Context does, feeds it `tokens`, and compares its logits with `expected`.

    float32 programs must agree closely, others loosely; `expected` of None compares nothing. If this machine lacks the
    backend, nothing runs, and `tell` gets a message. Raises ExportError.
    """
    manifest = folder.manifest
    try:
        load_backend(manifest.backend)
    except BackendError:
        tell(f"not run, because backend {manifest.backend} is not here")
        return
    try:
        logits = _run(folder, tokens)
    except (_core.Error, ModelFolderError) as error:
        raise ExportError(f"the exported program does not run: {error}") from error
    if not np.isfinite(logits).all():
        raise ExportError(
            "the exported program's logits are not finite. Download the model again, or try another quantisation or "
            "dtype"
        )
    if expected is not None:
        _compare(logits, expected, exact=manifest.quantization == "none" and manifest.dtype == "fp32")


def _compare(logits: Rows, expected: Rows, *, exact: bool) -> None:
    if logits.shape != expected.shape:
        raise ExportError(
            f"the exported program gives out {logits.shape} logits where the model's are {expected.shape}"
        )
    if exact:
        off, largest = (float(np.abs(rows).max()) for rows in (logits - expected, expected))
        if off > _MOST_ERROR * largest:
            raise ExportError(
                f"the exported program does not compute what the model does: its logits are off by up to {off:.3g} "
                f"where the largest is {largest:.3g}, and {_MOST_ERROR:g} of that is allowed"
            )
    elif (agreement := _agreement(logits, expected)) < _LEAST_AGREEMENT:
        raise ExportError(
            f"the exported program says something else than the model: the correlation of their logits is "
            f"{agreement:.2f}, and {_LEAST_AGREEMENT:g} is the least. Try another quantisation or dtype"
        )


def _run(folder: ModelFolder, tokens: list[int]) -> Rows:
    size = min(folder.manifest.max_tokens, folder.manifest.max_logits)
    session = open_session(folder, capacity=len(tokens), kv_dtype="fp32", min_chunk=len(tokens), verify=False)
    rows: list[Rows] = []
    for start in range(0, len(tokens), size):
        chunk = np.array(tokens[start : start + size], dtype=np.int64)
        session.cache.begin_step([0] * len(chunk))
        out: Any = session.forward(chunk, np.arange(start, start + len(chunk)), np.arange(len(chunk)))
        session.cache.commit_step()
        if not np.isfinite(session.features()).all():
            raise ExportError("the exported program gives out features that are not finite: try another quantisation")
        rows.append(out)
    return np.concatenate(rows)


def _agreement(logits: Rows, expected: Rows) -> float:
    """Smallest correlation between a row of `logits` and the same row of `expected`.

    Ignores rows in which all of `expected` is equal; a row in which only all of `logits` is equal has correlation 0.
    """
    told = [(row, other) for row, other in zip(logits, expected, strict=True) if np.ptp(other) > 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        found = [float(np.corrcoef(row, other)[0, 1]) if np.ptp(row) > 0 else 0.0 for row, other in told]
    return min(found, default=1.0)


def probe_features(width: int) -> Rows:
    """Random features of two rows, `[2, width]`."""
    return np.random.default_rng(0).standard_normal((2, width), dtype=np.float32)


def run_head(program: Path, manifest: DraftManifest, expected: Rows | None = None) -> None:
    """Opens an exported draft head, drafts from random features, and compares its logits with `expected`, if any.

    Raises ExportError.
    """
    features = probe_features(manifest.feature_dim)
    try:
        session = load_head(program).make_session(capacity=2, kv_dtype="fp32", min_chunk=2)
        hidden = session.fuse(features)
        session.cache.begin_step([0, 0])
        logits, out = session.forward(np.arange(2), np.arange(2), hidden, np.arange(2))
        session.cache.commit_step()
    except _core.Error as error:
        raise ExportError(f"the exported head does not run: {error}") from error
    if logits.shape != (2, manifest.draft_vocab_size) or not (np.isfinite(logits).all() and np.isfinite(out).all()):
        raise ExportError("the exported head gives out too few numbers, or some that are not finite")
    if expected is not None:
        _compare(logits, expected, exact=manifest.quantization == "none")
