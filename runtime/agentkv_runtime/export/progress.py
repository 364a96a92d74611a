"""How much of an export is over: its stages take time in proportions that were measured."""

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
"""Told in a few words what begins now."""

Done: TypeAlias = Callable[[float], None]
"""Told the share of an export's time that is over, 0 to 1, as far as that can be told."""


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
"""Of programs that are written without torch, in a file's own blocks."""
QUANTIZED = (Stage.CHOOSING, *DIRECT)
"""Of programs that are written without torch, whose weights are quantised."""
MEASURED = tuple(stage for stage in Stage if stage not in QUANTIZED)
"""Of programs that are traced, whose weights are measured first."""
TRACED = tuple(stage for stage in MEASURED if stage is not Stage.MEASURING)
"""Of other programs that are traced."""

_USUAL_LAYERS = 24

_reached: ContextVar[Callable[[Stage, float], None] | None] = ContextVar("agentkv_export_stage", default=None)


def model_size(src: Path, described: Path) -> tuple[int, int]:
    """Layers and bytes of the model `src`, whose config is in `described`, near enough for an estimate."""
    config = read_object(described / "config.json", ExportError)
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("num_hidden_layers")
    files = [src] if src.is_file() else [*src.glob("*.safetensors"), *src.glob("*.bin")]
    return layers if isinstance(layers, int) else _USUAL_LAYERS, sum(file.stat().st_size for file in files)


@contextmanager
def sharing(done: Done, layers: int, nbytes: int, stages: tuple[Stage, ...]) -> Iterator[None]:
    """In the block, `done` hears of what an export of these stages has `reached`: of a model of so many layers, in so
    many bytes."""
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
    """So much of a stage is over, 0 to 1, and all of those before it. Also for code that ExecuTorch calls."""
    tell = _reached.get()
    if tell is not None:
        tell(stage, share)
