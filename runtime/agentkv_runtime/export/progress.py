"""Estimate of an export's finished share, from measured times of its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.small_files import read_object

__all__ = ["DIRECT", "MEASURED", "QUANTIZED", "TRACED", "Done", "Progress", "Stage", "model_size", "reached", "sharing"]

Progress: TypeAlias = Callable[[str], None]
"""Called with a few words about the step that begins."""

Done: TypeAlias = Callable[[float], None]
"""Called with the estimated share of an export's time that is over, 0 to 1."""


class Stage(Enum):
    """A part of an export: the seconds that it takes by itself, per layer, and per 10^9 bytes of the source."""

    # Of Qwen3's shapes of 0.6 and 4 billion weights; only their proportions count.
    TORCH = (6.0, 0.0, 0.0)
    LOADING = (0.4, 0.0, 3.0)
    MEASURING = (0.5, 0.0, 60.0)
    TRYING = (0.3, 0.0, 14.0)
    TRACING = (0.2, 0.35, 0.0)
    LOWERING = (1.0, 2.3, 30.0)
    PLANNING = (0.3, 0.05, 0.1)
    WRITING = (0.1, 0.0, 3.0)
    CHOOSING = (0.0, 0.05, 1.0)
    LAYING_OUT = (0.0, 0.0, 10.0)


DIRECT = (Stage.LAYING_OUT,)
"""Stages of programs that are written without torch, in a file's own blocks."""
QUANTIZED = (Stage.CHOOSING, *DIRECT)
"""Stages of programs that are written without torch, with quantisation."""
MEASURED = tuple(stage for stage in Stage if stage not in QUANTIZED)
"""Stages of programs that are traced after measuring their weights."""
TRACED = tuple(stage for stage in MEASURED if stage is not Stage.MEASURING)
"""Stages of other programs that are traced."""

_USUAL_LAYERS = 24

_reached: ContextVar[Callable[[Stage, float], None] | None] = ContextVar("agentkv_export_stage", default=None)


def model_size(src: Path, described: Path) -> tuple[int, int]:
    """Approximate layers and bytes of the model `src`, whose config is in `described`, for the estimate."""
    config = read_object(described / "config.json", ExportError)
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("num_hidden_layers")
    files = [src] if src.is_file() else [*src.glob("*.safetensors"), *src.glob("*.bin")]
    return layers if isinstance(layers, int) else _USUAL_LAYERS, sum(file.stat().st_size for file in files)


@contextmanager
def sharing(done: Done, layers: int, nbytes: int, stages: tuple[Stage, ...]) -> Iterator[None]:
    """Passes the share that an export of these stages has `reached` in the block to `done`.

    The model has `layers` layers and a source of `nbytes` bytes.
    """
    seconds = [each.value[0] + each.value[1] * layers + each.value[2] * nbytes / 1e9 for each in stages]

    most = 0.0  # parts of a stage may be done in another order

    def tell(stage: Stage, share: float) -> None:
        nonlocal most
        index = stages.index(stage)
        most = max(most, (sum(seconds[:index]) + share * seconds[index]) / sum(seconds))
        done(most)

    token = _reached.set(tell)
    try:
        yield
    finally:
        _reached.reset(token)


def reached(stage: Stage, share: float = 0.0) -> None:
    """Reports that `share` of a stage, 0 to 1, and all earlier stages are over. Callable from ExecuTorch."""
    tell = _reached.get()
    if tell is not None:
        tell(stage, share)
