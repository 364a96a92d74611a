"""The `kv_cache.*` constant methods of a program: facts of the architecture, never choices of the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from agentkv_runtime.backends import KV_DTYPES, keys_and_values
from agentkv_runtime.errors import UnknownSchemaError

__all__ = [
    "MAX_HEAD_DIM",
    "SCHEMA_VERSION",
    "SHAPES_VERSION",
    "STATES_VERSION",
    "Kept",
    "KvCacheMetadata",
    "LayerShape",
    "read_kv_cache_metadata",
    "write_kv_cache_metadata",
]

SCHEMA_VERSION = 1
SHAPES_VERSION = 2
"""Version of programs whose layers differ in shape, or cache something else than keys and values of one width."""
STATES_VERSION = 3
"""Version of programs with layers that carry states (linear attention, scans) or convolve."""
MAX_HEAD_DIM = 2048
_PREFIX = "kv_cache."
_COUNTS = ("n_layers", "n_kv_heads", "head_dim")
_FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_CODE_BITS = {"int8": 8, "int4": 4}


class Kept(IntEnum):
    """Kind of data that a layer caches per token."""

    KEYS_AND_VALUES = 0
    LATENT = 1
    """Keys alone, whose first `v_dim` numbers are the values, as in latent attention (DeepSeek-V2, 2024)."""
    LINEAR = 2
    """Keys and values of linear attention for the last one or two blocks of 64 tokens, and a state
    `[n_kv_heads * v_heads, k_dim, v_dim]` at the end of each block; all float32."""
    INPUTS = 3
    """Inputs of a convolution for its last few tokens, as keys alone, float32."""
    GATED_LINEAR = 4
    """As LINEAR, with a decay for each number of a key."""
    SCAN = 5
    """Terms that a selective scan of `v_dim` channels adds to its state `[k_dim, v_dim]`; otherwise as LINEAR."""

    @property
    def has_states(self) -> bool:
        """Whether such a layer carries a state from token to token."""
        return self in (Kept.LINEAR, Kept.GATED_LINEAR, Kept.SCAN)


class LayerShape(NamedTuple):
    """Shape and kind of one layer's cache entry per token."""

    n_kv_heads: int
    k_dim: int
    v_dim: int
    kept: Kept = Kept.KEYS_AND_VALUES
    v_heads: int = 1
    """Heads of values per head of keys, in linear attention."""

    @property
    def state_bytes(self) -> int:
        """Bytes of one state; 0 for layers without states."""
        return 4 * self.n_kv_heads * self.v_heads * self.k_dim * self.v_dim if self.kept.has_states else 0


def _row_bytes(dim: int, kv_dtype: str, backend: str) -> int:
    if kv_dtype in _FLOAT_BYTES:
        return dim * _FLOAT_BYTES[kv_dtype]
    if backend != "mlx":
        return (dim if kv_dtype == "int8" else (dim + 31) // 32 * 16) + 4
    if dim % 32:
        raise ValueError(f"{kv_dtype} needs a head_dim that 32 divides on MLX, not {dim}")
    groups = dim // (64 if dim % 64 == 0 else 32)
    return dim * _CODE_BITS[kv_dtype] // 8 + groups * 4


@dataclass(frozen=True)
class KvCacheMetadata:
    """Number, shapes and windows of the layers that a cache serves."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    windows: tuple[int, ...] = ()
    """Window or chunk of each layer in positions, 0 for unbounded; empty when every layer is unbounded."""
    shapes: tuple[LayerShape, ...] = ()
    """Shape of each layer; empty where all cache `n_kv_heads` keys and values of `head_dim`."""

    @classmethod
    def of_layers(cls, shapes: Sequence[LayerShape], windows: Sequence[int]) -> KvCacheMetadata:
        """Metadata of layers with these shapes and windows; `n_kv_heads` and `head_dim` are the largest layer's."""
        largest = max(shapes, key=lambda shape: shape.n_kv_heads * shape.k_dim)
        like_largest = LayerShape(largest.n_kv_heads, largest.k_dim, largest.k_dim)
        plain = all(shape == like_largest for shape in shapes)
        return cls(
            len(shapes),
            largest.n_kv_heads,
            largest.k_dim,
            tuple(windows) if any(windows) else (),
            () if plain else tuple(shapes),
        )

    @property
    def schema_version(self) -> int:
        """Oldest schema version that can express this metadata."""
        return _version_of(self.shapes)

    def kv_bytes_per_token(self, kv_dtype: str, backend: str = "cpu") -> int:
        """Bytes that one cached token takes over all layers, K and V. Raises ValueError for dtypes that do not fit.

        int8 and int4 are codes of a row (int4: 32 numbers in 16 bytes) with a float32 scale; on MLX with a float16
        scale and bias per 64 numbers, or 32 where 64 does not divide head_dim.
        """
        if kv_dtype not in KV_DTYPES:
            raise ValueError(f"kv_dtype must be one of {', '.join(KV_DTYPES)}, not {kv_dtype!r}")
        keys, values = keys_and_values(kv_dtype)
        total = 0
        for shape in self.shapes or (LayerShape(self.n_kv_heads, self.head_dim, self.head_dim),) * self.n_layers:
            if shape.kept.has_states or shape.kept == Kept.INPUTS:  # of few tokens
                continue
            if shape.kept == Kept.LATENT and keys in _CODE_BITS:
                raise ValueError(f"rows whose values are a part of their keys are not kept as {kv_dtype}")
            row_bytes = _row_bytes(shape.k_dim, keys, backend)
            if shape.kept != Kept.LATENT:
                row_bytes += _row_bytes(shape.v_dim, values, backend)
            total += shape.n_kv_heads * row_bytes
        return total


def _version_of(shapes: Sequence[LayerShape]) -> int:
    if any(shape.kept.has_states or shape.kept == Kept.INPUTS for shape in shapes):
        return STATES_VERSION
    return SHAPES_VERSION if shapes else SCHEMA_VERSION


def write_kv_cache_metadata(
    *,
    n_layers: int,
    n_kv_heads: int,
    head_dim: int,
    windows: Sequence[int] = (),
    shapes: Sequence[LayerShape] = (),
) -> dict[str, int | list[int]]:
    """Constant methods for `to_edge_transform_and_lower(..., constant_methods=)`.

    `windows` and `shapes` have one entry per layer; windows, 0 for full attention, are left out when no layer has one.
    """
    counts = {"n_layers": n_layers, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if any(window < 0 for window in windows):
        raise ValueError(f"windows must not be negative: {list(windows)}")
    if windows and len(windows) != n_layers:
        raise ValueError(f"{len(windows)} windows for {n_layers} layers; give one per layer")
    if shapes and len(shapes) != n_layers:
        raise ValueError(f"{len(shapes)} shapes for {n_layers} layers; give one per layer")
    constants: dict[str, int | list[int]] = {_PREFIX + "schema_version": _version_of(shapes)}
    constants |= {_PREFIX + name: value for name, value in counts.items()}
    if any(windows):
        constants[_PREFIX + "windows"] = list(windows)
    if shapes:
        width = _numbers_of_a_shape(_version_of(shapes))
        constants[_PREFIX + "shapes"] = [int(number) for shape in shapes for number in shape[:width]]
    return constants


def read_kv_cache_metadata(constants: Mapping[str, object]) -> KvCacheMetadata:
    """The metadata that `write_kv_cache_metadata` wrote, as a loaded program returns it.

    Raises UnknownSchemaError for other versions of the schema or when a constant is missing or malformed.
    """
    version = constants.get(_PREFIX + "schema_version")
    if version is None:
        raise UnknownSchemaError("no kv_cache.schema_version: agentkv did not export this program")
    if version not in (SCHEMA_VERSION, SHAPES_VERSION, STATES_VERSION):
        raise UnknownSchemaError(
            f"cache schema version {version!r}; this runtime reads {SCHEMA_VERSION} to {STATES_VERSION}. Install the"
            " agentkv that exported the program, or export the model again"
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
    shapes = _read_shapes(constants, counts["n_layers"], version) if version != SCHEMA_VERSION else ()
    return KvCacheMetadata(**counts, windows=tuple(windows), shapes=shapes)


def _numbers_of_a_shape(version: int) -> int:
    return 5 if version == STATES_VERSION else 4


def _read_shapes(constants: Mapping[str, object], n_layers: int, version: int) -> tuple[LayerShape, ...]:
    numbers = constants.get(_PREFIX + "shapes", ())
    if not isinstance(numbers, Sequence) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise UnknownSchemaError(f"{_PREFIX}shapes must be integers of at least 0, not {numbers!r}")
    width = _numbers_of_a_shape(version)
    if len(numbers) != width * n_layers:
        raise UnknownSchemaError(f"{len(numbers)} numbers of shapes for {n_layers} layers, which take {width} each")
    if any(kept not in list(Kept) for kept in numbers[3::width]):
        raise UnknownSchemaError(f"{_PREFIX}shapes name something that no layer keeps: {numbers!r}")
    return tuple(
        LayerShape(heads, k_dim, v_dim, Kept(kept), *v_heads)
        for heads, k_dim, v_dim, kept, *v_heads in zip(*[iter(numbers)] * width, strict=True)
    )
