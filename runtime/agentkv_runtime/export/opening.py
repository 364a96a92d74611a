"""Loading of the model to export, with deferred weights if possible."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.first_run import Rows, model_logits
from agentkv_runtime.hf.deferred import loading_as_it_runs
from agentkv_runtime.hf.load import stream_model
from agentkv_runtime.sources.source import load_source

__all__ = ["open_model"]


def open_model(src: Path, folder: Path, adapter: Path | None, tokens: list[int]) -> tuple[PreTrainedModel, Rows]:
    """Loads the float32 model in `src`, described by `folder`; also returns its logits for `tokens`, `[T, vocabulary]`.

    Matrices of a Hugging Face folder are deferred if each module reads only its own weights; other models are loaded as
    a whole. Raises ExportError.
    """
    streamed = stream_model(src) if folder == src and adapter is None else None
    if streamed is not None:
        try:
            with loading_as_it_runs(streamed):
                return streamed, model_logits(streamed, tokens)
        except ExportError:  # the whole model says better what is wrong with it, if anything is
            pass
    model = load_source(src, folder, adapter)
    return model, model_logits(model, tokens)
