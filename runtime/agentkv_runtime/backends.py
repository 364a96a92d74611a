"""Backends that models run on: names, dtypes of their caches and programs, and loading them into the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from agentkv_runtime.errors import BackendError

if TYPE_CHECKING:
    from agentkv_runtime.folder.manifest import DType, Quantization

__all__ = [
    "BACKENDS",
    "KV_DTYPES",
    "PROGRAM_BACKENDS",
    "QUANTIZED_KV_DTYPES",
    "Backend",
    "keys_and_values",
    "load_backend",
]


@dataclass(frozen=True)
class Backend:
    """One way to run a model."""

    name: str
    """Name in manifests and in `Context.open`."""
    kv_dtypes: tuple[str, ...]
    """Dtypes of keys and values in its caches: one for both, or one for each ("int8/int4")."""
    load: Callable[[], None]
    """Makes the backend usable in this process; may be called again. Raises BackendError."""
    backend_id: str = ""
    """Name in ExecuTorch; empty for the backend that runs Hugging Face folders instead of exported programs."""
    quantizations: tuple[Quantization, ...] = ()
    """Quantisations of weights in programs for it."""
    dtypes: tuple[DType, ...] = ()
    """Dtypes of activations and of other weights in programs for it."""
    usual: tuple[Quantization, DType] = ("none", "fp32")
    """Default quantisation and dtype of an export, for small and fast programs."""


def load_backend(name: str) -> str:
    """Loads a backend of PROGRAM_BACKENDS into this process, so that its programs can run; returns its `backend_id`.

    Raises BackendError, saying what to install, if it cannot be loaded, and KeyError for an unknown name.
    """
    backend = PROGRAM_BACKENDS[name]
    backend.load()
    return backend.backend_id


def keys_and_values(kv_dtype: str) -> tuple[str, str]:
    """Dtype of keys and dtype of values in one of KV_DTYPES."""
    keys, _, values = kv_dtype.partition("/")
    return keys, values or keys


def _load_cpu() -> None:
    import_module("agentkv_runtime._core")


def _load_torch() -> None:
    try:
        import_module("torch")
        import_module("transformers")
    except ImportError as error:
        raise BackendError(
            f"backend 'torch' needs torch and transformers, but {error.name!r} cannot be imported. Install them: "
            "pip install 'agentkv-sdk[export]'"
        ) from error


def _mlx_requirement() -> str:
    """What pip calls the MLX that is installed: one package for each kind of device."""
    kinds = {"mlx-cuda-12": "mlx[cuda12]", "mlx-cuda-13": "mlx[cuda13]", "mlx-cpu": "mlx[cpu]"}
    return next((kinds[package] for package in kinds if _is_installed(package)), "mlx")


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _load_mlx() -> None:
    from agentkv_runtime import _core

    built = _core.mlx_version()
    if built is None:
        raise BackendError(
            "this build of agentkv has no MLX backend, because mlx was not installed where it was built. Install mlx, "
            "then agentkv anew from source: pip install --no-build-isolation 'agentkv-sdk[mlx]'"
        )
    try:
        found = import_module("mlx.core").__version__
    except ImportError as error:
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be loaded ({error})"
        raise BackendError(
            f"backend 'mlx' needs mlx {built}, which {why}. Install it: pip install 'agentkv-sdk[mlx]', or with CUDA "
            "12 or 13 'agentkv-sdk[mlx-cuda12]' or 'agentkv-sdk[mlx-cuda13]'"
        ) from error
    if found != built:
        raise BackendError(
            f"backend 'mlx' was built with mlx {built} and runs with no other, but mlx {found} is installed. Install "
            f"the one that it needs: pip install '{_mlx_requirement()}=={built}'"
        )
    try:
        import_module("agentkv_runtime._mlx")
    except ImportError as error:
        raise BackendError(f"backend 'mlx' cannot be loaded: {error}") from error


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "cpu",
            kv_dtypes=("fp32", "fp16", "bf16", "int8", "int8/int4", "int4"),
            load=_load_cpu,
            backend_id="AgentKVCPU",
            quantizations=("none", "file", "q4", "q5", "q6", "q8", "8da8w", "8da4w"),
            dtypes=("fp32",),
            usual=("q4", "fp32"),
        ),
        Backend(
            "mlx",
            kv_dtypes=("fp32", "fp16", "bf16", "int8", "int8/int4", "int4"),
            load=_load_mlx,
            backend_id="AgentKVMLX",
            quantizations=("none", "file", "affine8", "affine4"),
            dtypes=("fp32", "fp16", "bf16"),
            usual=("affine4", "fp16"),
        ),
        Backend("torch", kv_dtypes=("fp32", "fp16", "bf16", "int8", "int8/int4", "int4"), load=_load_torch),
    )
}
"""Backends that `Context.open` accepts, by name."""

PROGRAM_BACKENDS = {name: backend for name, backend in BACKENDS.items() if backend.backend_id}
"""Backends that a manifest can name: those that run exported programs."""

KV_DTYPES = tuple(dict.fromkeys(dtype for backend in BACKENDS.values() for dtype in backend.kv_dtypes))
"""Dtypes of keys and values that any backend's caches have."""

QUANTIZED_KV_DTYPES = ("int8", "int8/int4", "int4")
"""Dtypes among KV_DTYPES that store codes."""
