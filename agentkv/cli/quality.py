"""Measures an exported model for `agentkv inspect --quality`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .._console.progress import Display, displayed
from .._types.errors import from_native

if TYPE_CHECKING:
    from agentkv_runtime.folder.model_folder import ModelFolder
    from agentkv_runtime.quality import Quality, ScoredModel


@dataclass(frozen=True)
class Measurement:
    """What is to be measured."""

    model: ModelFolder
    text: str
    """What the windows are of, for people."""
    windows: list[list[int]]
    source: Path | None
    """What the model is compared with."""

    @classmethod
    def planned(cls, model: ModelFolder, text: Path | None, windows: int, source: Path | None) -> Measurement:
        """Reads the text, Python's help topics without one. `source` is looked for where it is None.

        Raises QualityError for a text that cannot be read or is too short, and for a model that takes no whole window;
        TokenizerError; ExportError for a source that is none, or where torch is missing.
        """
        from agentkv_runtime.export.checks import check_source, check_torch
        from agentkv_runtime.quality import check_positions, default_text, read_text_file, text_windows

        check_positions(model)
        if source is not None:
            check_source(source)
            check_torch()
        read = default_text() if text is None else read_text_file(text)
        name = "Python's help topics" if text is None else str(text)
        tokens = text_windows(model.tokenizer, read, most=windows)
        return cls(model, name, tokens, source or _source_at_hand(model))

    def run(self) -> list[tuple[str, str]]:
        """What comes out, as rows. Ends the command, saying why, where the model or its source cannot be run."""
        with displayed("stopped; the quality was not measured") as display:
            try:
                quality = self._measure(display)
            except Exception as error:
                if (known := from_native(error)) is error:
                    raise
                raise known from error
        return list(self._rows(quality))

    def _measure(self, display: Display) -> Quality:
        from agentkv_runtime.quality import WINDOW, SessionModel, measure_quality
        from agentkv_runtime.sessions import make_decode_session

        display.tell("opening the model")
        scored = SessionModel(make_decode_session(self.model, capacity=WINDOW))
        compared = None if self.source is None else _source_model(self.source, display)
        display.tell(f"reading {len(self.windows)} windows of {WINDOW} tokens")
        return measure_quality(scored, self.windows, source=compared, done=display.done)

    def _rows(self, quality: Quality) -> Iterator[tuple[str, str]]:
        yield "perplexity", f"{quality.perplexity:.3f} (standard error {quality.standard_error:.3f})"
        yield "measured on", f"{self.text}: {quality.tokens:,} tokens in {quality.windows} windows of 512"
        lost = quality.divergence
        if lost is None:
            yield "divergence", "not measured: --source PATH compares with what it was exported from"
            return
        yield "source", str(self.source)
        yield "divergence from it", f"KL {lost.mean:.4f} nats per token, 99th percentile {lost.percentile_99:.3f}"
        yield "same best token", f"{100 * lost.same_best:.1f}%"


def _source_at_hand(model: ModelFolder) -> Path | None:
    """What the model was exported from, where that is a path here and torch, which runs it, is installed."""
    from agentkv_runtime.folder.model_folder import is_hf_folder
    from agentkv_runtime.sources.source import is_gguf

    path = Path(model.manifest.source)
    try:
        here = is_gguf(path) or is_hf_folder(path)
    except OSError:  # a name that is no path
        return None
    return path if here and find_spec("torch") and find_spec("transformers") else None


def _source_model(path: Path, display: Display) -> ScoredModel:
    from agentkv_runtime.export.quiet import quiet_libraries

    display.tell("loading the source")
    with quiet_libraries():
        from agentkv_runtime.sources.reference import SourceModel

        return SourceModel(path)
