"""Types of layers, full or sliding attention."""

from __future__ import annotations

from agentkv_runtime.gguf.keys import Keys

__all__ = ["FULL", "SLIDING", "layer_types"]

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_types(keys: Keys, layers: int, period: int) -> list[str]:
    """Type of each layer: the last of every `period` is full, unless the file has its own period or list."""
    stated = keys.value("attention.sliding_window_pattern", period)
    if isinstance(stated, list):
        windowed = [bool(each) for each in stated]
    else:
        period = keys.whole("attention.sliding_window_pattern", period)
        windowed = [period == 0 or i % period < period - 1 for i in range(layers)]
    if len(windowed) != layers:
        keys.unsupported(f"attention.sliding_window_pattern has {len(windowed)} entries for {layers} layers")
    return [SLIDING if each else FULL for each in windowed]
