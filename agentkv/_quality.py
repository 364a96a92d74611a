"""Measures an exported model for `agentkv inspect --quality`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ._errors import from_native
from ._progress import Display, displayed

if TYPE_CHECKING:
    from agentkv_runtime.folder import ModelFolder
    from agentkv_runtime.quality import Quality, ScoredModel


def measured_rows(model: ModelFolder, text: Path | None, windows: int, source: Path | None) -> list[tuple[str, str]]:
    """Runs the model on a text, and its source where it is at hand; what came out, as rows.

    Ends the command, saying why, where that cannot be.
    """
    with displayed("stopped; the quality was not measured") as display:
        found = source or _source_at_hand(model)
        try:
            quality = _measured(model, text, windows, found, display)
        except Exception as error:
            raise from_native(error) from error
    return list(_rows(quality, text, found))


def _source_at_hand(model: ModelFolder) -> Path | None:
    """What the model was exported from, where that is a path here and torch, which runs it, is installed."""
    from agentkv_runtime.folder import is_hf_folder
    from agentkv_runtime.sources.source import is_gguf

    path = Path(model.manifest.source)
    try:
        here = is_gguf(path) or is_hf_folder(path)
    except OSError:  # a name that is no path
        return None
    return path if here and find_spec("torch") and find_spec("transformers") else None


def _measured(model: ModelFolder, text: Path | None, windows: int, source: Path | None, display: Display) -> Quality:
    from agentkv_runtime.quality import (
        WINDOW,
        SessionModel,
        default_text,
        measure_quality,
        read_text_file,
        text_windows,
    )
    from agentkv_runtime.sessions import make_decode_session

    display.tell("reading the text")
    read = default_text() if text is None else read_text_file(text)
    tokens = text_windows(model.tokenizer, read, most=windows)
    display.tell("opening the model")
    scored = SessionModel(make_decode_session(model, capacity=WINDOW))
    compared = None if source is None else _source_model(source, display)
    display.tell(f"reading {len(tokens)} windows of {WINDOW} tokens")
    return measure_quality(scored, tokens, source=compared, done=display.done)


def _source_model(path: Path, display: Display) -> ScoredModel:
    from agentkv_runtime.export.folder import check_source, check_torch
    from agentkv_runtime.export.quiet import quiet_libraries

    check_source(path)
    check_torch()
    display.tell("loading the source")
    with quiet_libraries():
        from agentkv_runtime.sources.reference import SourceModel

        return SourceModel(path)


def _rows(quality: Quality, text: Path | None, source: Path | None) -> list[tuple[str, str]]:
    name = "Python's help topics" if text is None else str(text)
    rows = [
        ("perplexity", f"{quality.perplexity:.3f} (standard error {quality.standard_error:.3f})"),
        ("measured on", f"{name}: {quality.tokens} tokens in {quality.windows} windows of 512"),
    ]
    if quality.divergence is None:
        return [*rows, ("divergence", "not measured; --source PATH compares with what it was exported from")]
    lost = quality.divergence
    return [
        *rows,
        ("source", str(source)),
        ("divergence from it", f"KL {lost.mean:.4f} nats per token, 99th percentile {lost.percentile_99:.3f}"),
        ("same best token", f"{100 * lost.same_best:.1f}%"),
    ]
