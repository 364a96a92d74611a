"""What runs exported programs: the names of each backend, and how it gets into the process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from agentkv_runtime import _core
from agentkv_runtime.errors import BackendError

__all__ = ["BACKENDS", "Backend", "load_backend"]


@dataclass(frozen=True)
class Backend:
    """One way to run a program."""

    name: str
    """In manifests and in `Context.open`."""
    backend_id: str
    """ExecuTorch's name of it."""
    kv_dtypes: tuple[str, ...]
    """What its caches keep keys and values as."""
    load: Callable[[], None]
    """Registers it with ExecuTorch; harmless when called again. Raises BackendError."""


def load_backend(name: str) -> str:
    """Makes this process able to run programs for a backend of BACKENDS; returns ExecuTorch's name of it.

    Raises BackendError, saying what to install, where it cannot be, and KeyError for a name that is not there.
    """
    backend = BACKENDS[name]
    backend.load()
    return backend.backend_id


def _load_cpu() -> None:
    """The native module brings it along."""


def _load_mlx() -> None:
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
            f"backend 'mlx' needs mlx {built}, which {why}. Install it: pip install 'agentkv-sdk[mlx]'"
        ) from error
    if found != built:
        package = "mlx" if sys.platform == "darwin" else "mlx[cpu]"
        raise BackendError(
            f"backend 'mlx' was built with mlx {built} and runs with no other, but mlx {found} is installed. Install "
            f"the one that it needs: pip install '{package}=={built}'"
        )
    try:
        import_module("agentkv_runtime._mlx")
    except ImportError as error:
        raise BackendError(f"backend 'mlx' cannot be loaded: {error}") from error


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("cpu", "AgentKVCPU", ("fp32", "fp16", "bf16"), _load_cpu),
        Backend("mlx", "AgentKVMLX", ("fp32", "fp16", "bf16", "int8", "int4"), _load_mlx),
    )
}
"""The backends that a manifest can name."""
