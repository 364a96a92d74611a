"""The `kv_cache.*` constant methods of a program: facts of the architecture, never choices of the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv_runtime.errors import UnknownSchemaError

__all__ = ["SCHEMA_VERSION", "KvCacheMetadata", "read_kv_cache_metadata", "write_kv_cache_metadata"]

SCHEMA_VERSION = 1
_PREFIX = "kv_cache."
_COUNTS = ("n_layers", "n_kv_heads", "head_dim")
_FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_CODE_BITS = {"int8": 8, "int4": 4}


@dataclass(frozen=True)
class KvCacheMetadata:
    """What a cache must know of the model it serves."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    windows: tuple[int, ...] = ()
    """Sliding window of each layer in positions, 0 for none; empty when no layer has one."""
    schema_version: int = SCHEMA_VERSION

    def kv_bytes_per_token(self, kv_dtype: str, backend: str = "cpu") -> int:
        """Bytes that one cached token takes over all layers, K and V. Raises ValueError for dtypes that do not fit.

        int8 and int4 are codes of a row (int4: 32 numbers in 16 bytes) with a float32 scale; on MLX with a float16
        scale and bias per 64 numbers, or 32 where 64 does not divide head_dim.
        """
        if kv_dtype in _FLOAT_BYTES:
            row = self.head_dim * _FLOAT_BYTES[kv_dtype]
        elif kv_dtype not in _CODE_BITS:
            raise ValueError(f"kv_dtype must be one of {', '.join((*_FLOAT_BYTES, *_CODE_BITS))}, not {kv_dtype!r}")
        elif backend != "mlx":
            row = (self.head_dim if kv_dtype == "int8" else (self.head_dim + 31) // 32 * 16) + 4
        else:
            if self.head_dim % 32:
                raise ValueError(f"{kv_dtype} needs a head_dim that 32 divides on MLX, not {self.head_dim}")
            groups = self.head_dim // (64 if self.head_dim % 64 == 0 else 32)
            row = self.head_dim * _CODE_BITS[kv_dtype] // 8 + groups * 4
        return 2 * self.n_layers * self.n_kv_heads * row


def write_kv_cache_metadata(
    *, n_layers: int, n_kv_heads: int, head_dim: int, windows: Sequence[int] = ()
) -> dict[str, int | list[int]]:
    """Constant methods for `to_edge_transform_and_lower(..., constant_methods=)`.

    `windows` has one entry per layer, 0 for full attention; it is left out when no layer has a window.
    """
    counts = {"n_layers": n_layers, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if any(window < 0 for window in windows):
        raise ValueError(f"windows must not be negative: {list(windows)}")
    if windows and len(windows) != n_layers:
        raise ValueError(f"{len(windows)} windows for {n_layers} layers; give one per layer")
    constants: dict[str, int | list[int]] = {_PREFIX + "schema_version": SCHEMA_VERSION}
    constants |= {_PREFIX + name: value for name, value in counts.items()}
    if any(windows):
        constants[_PREFIX + "windows"] = list(windows)
    return constants


def read_kv_cache_metadata(constants: Mapping[str, object]) -> KvCacheMetadata:
    """The metadata that `write_kv_cache_metadata` wrote, as a loaded program returns it.

    Raises UnknownSchemaError for a version other than `SCHEMA_VERSION` or when a constant is missing or malformed.
    """
    version = constants.get(_PREFIX + "schema_version")
    if version is None:
        raise UnknownSchemaError("no kv_cache.schema_version: agentkv did not export this program")
    if version != SCHEMA_VERSION:
        raise UnknownSchemaError(
            f"cache schema version {version!r}; this runtime reads {SCHEMA_VERSION}. Install the agentkv that exported "
            "the program, or export the model again"
        )
    counts: dict[str, int] = {}
    for name in _COUNTS:
        value = constants.get(_PREFIX + name)
        if not isinstance(value, int) or value < 1:
            raise UnknownSchemaError(f"{_PREFIX}{name} must be an integer of at least 1, not {value!r}")
        counts[name] = value
    windows = constants.get(_PREFIX + "windows", ())
    if not isinstance(windows, Sequence) or not all(isinstance(w, int) and w >= 0 for w in windows):
        raise UnknownSchemaError(f"{_PREFIX}windows must be integers of at least 0, not {windows!r}")
    if windows and len(windows) != counts["n_layers"]:
        raise UnknownSchemaError(f"{len(windows)} windows for {counts['n_layers']} layers")
    return KvCacheMetadata(**counts, windows=tuple(windows))
