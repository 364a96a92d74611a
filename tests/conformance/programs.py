"""The ways to run a model: each backend over a fresh cache, driven step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv_runtime import _core
from agentkv_runtime.torch_backend.session import open_torch_session

from tests.conformance.configs import ALL_CONFIGS
from tests.conftest import FolderFactory
from tests.driver import Driver, native_driver, oracle_driver

DriverFactory = Callable[..., Driver]


@dataclass(frozen=True)
class Model:
    """A tiny model as users would have it, and as each backend needs it."""

    name: str
    hf_folders: FolderFactory
    exported_folders: FolderFactory

    @property
    def hf_folder(self) -> Path:
        """The Hugging Face folder."""
        kind, fields = ALL_CONFIGS[self.name]
        return self.hf_folders(kind, **fields)

    def driver(self, backend: str, *, trees: bool = False, dtype: str = "fp32", **options: Any) -> Driver:
        """A fresh cache on `backend`; dtype is that of weights and activations, options are the cache's."""
        if backend == "torch":
            return self._torch(trees, **options)
        program = self.program(backend, dtype)
        if not trees:
            return native_driver(program, **options)
        session = program.make_session(**{"kv_dtype": "fp32", **options})
        return Driver(session, session.cache)

    def program(self, backend: str, dtype: str = "fp32") -> _core.ExecuTorchProgram:
        """The model exported for `backend` and loaded."""
        from agentkv_runtime.folder.model_folder import read_model_folder
        from agentkv_runtime.programs import load_folder

        kind, fields = ALL_CONFIGS[self.name]
        folder = self.exported_folders(kind, backend=backend, dtype=dtype, **fields)
        return load_folder(read_model_folder(folder), verify=False)

    def _torch(self, trees: bool, **options: Any) -> Driver:
        if not trees:
            return oracle_driver(self.hf_folder, **options)
        session = open_torch_session(self.hf_folder, **{"kv_dtype": "fp32", **options})
        return Driver(session, session.cache)
