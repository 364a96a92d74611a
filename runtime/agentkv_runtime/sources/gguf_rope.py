"""The scaling of rotary positions that a GGUF file asks for. Needs no torch.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A file that has a factor and no type of scaling is read
as llama.cpp reads it: linear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkv_runtime.errors import ExportError, UnsupportedModelError

__all__ = ["position_divisor"]

_FACTORS = ("rope.scaling.factor", "rope.scale_linear")
"""Of which the first that is there counts. The second is the older spelling."""


def position_divisor(path: Path, metadata: Mapping[str, Any]) -> float:
    """What positions are divided by before they are turned; 1 where nothing is scaled.

    Raises UnsupportedModelError for any other scaling, ExportError for a factor that is none.
    """
    prefix = f"{metadata['general.architecture']}."
    stated = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    kind = stated.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise _unsupported(path, f"its rotary positions by {kind!r}")
    if (magnitude := stated.get("rope.scaling.attn_factor", 1)) != 1:
        raise _unsupported(path, f"the length of its rotations (rope.scaling.attn_factor is {magnitude})")
    if kind == "none":
        return 1.0
    factor = next((stated[key] for key in _FACTORS if key in stated), 1)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor < math.inf:
        raise ExportError(
            f"{path}: its rotary positions are scaled by {factor!r}, which is no factor. Convert it again"
        )
    return float(factor) or 1.0  # 0 stands for none


def _unsupported(path: Path, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{path}: scales {what}, which is not read from GGUF files. Export the Hugging Face folder that it was made "
        "from"
    )
