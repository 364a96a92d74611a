"""Names and sizes of the block types that programs run as stored in a file."""

from __future__ import annotations

from agentkv_runtime._core import block_types
from agentkv_runtime.errors import ExportError

__all__ = ["kind_and_bits"]

_KINDS = {kind: (name, inputs, size) for kind, name, inputs, size in block_types()}


def kind_and_bits(layer: str, kind: int) -> tuple[str, int]:
    """Name of GGUF's type `kind`, and its bits per number, rounded.

    Raises ExportError, naming the layer, for a type that the kernels lack.
    """
    if kind not in _KINDS:
        names = ", ".join(name for name, _, _ in _KINDS.values())
        raise ExportError(
            f"{layer} is in blocks of GGUF type {kind}, which are not run as they are, only {names}. Choose bits with "
            "--quant, which dequantises the file first"
        )
    name, inputs, size = _KINDS[kind]
    return name, round(8 * size / inputs)
