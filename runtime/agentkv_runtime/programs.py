"""Programs loaded into this process. Opening a model twice shares one program, and with it one copy of the weights."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from agentkv_runtime import _core
from agentkv_runtime._core import (
    ExecuTorchHead,
    ExecuTorchProgram,
    ExecuTorchSession,
    get_cpu_isa,
    get_threads,
    set_threads,
)
from agentkv_runtime.backends import PROGRAM_BACKENDS, load_backend
from agentkv_runtime.errors import BackendError, ModelFolderError
from agentkv_runtime.folder.metadata import KvCacheMetadata, read_kv_cache_metadata
from agentkv_runtime.folder.model_folder import ModelFolder

__all__ = [
    "get_cpu_isa",
    "get_threads",
    "load_folder",
    "load_head",
    "load_program",
    "open_session",
    "set_threads",
]

_CPU = PROGRAM_BACKENDS["cpu"].backend_id
_Key = tuple[str, int, int, int, str]
_Loaded = TypeVar("_Loaded", ExecuTorchProgram, ExecuTorchHead)
_programs: weakref.WeakValueDictionary[_Key, ExecuTorchProgram] = weakref.WeakValueDictionary()
_heads: weakref.WeakValueDictionary[_Key, ExecuTorchHead] = weakref.WeakValueDictionary()
_loading: dict[_Key, threading.Lock] = {}
_lock = threading.Lock()


def load_program(path: str | Path, backend_id: str = _CPU) -> ExecuTorchProgram:
    """The program of a .pte, shared with other users of the same file, or loaded now. Callable from any thread.

    A file that was replaced since counts as another one. Programs are mapped into memory: replace the file by renaming
    another one into its place, as export does, and never write to it while it is open. Raises `_core.ProgramError`.
    """
    return _load(_programs, ExecuTorchProgram, path, backend_id)


def load_head(path: str | Path, backend_id: str = _CPU) -> ExecuTorchHead:
    """Like `load_program`, for a draft head's .pte."""
    return _load(_heads, ExecuTorchHead, path, backend_id)


def load_folder(folder: ModelFolder, *, verify: bool = True) -> ExecuTorchProgram:
    """Loads the program of a model folder, after checking that the manifest describes it.

    With `verify` the first load compares the file with the manifest's fingerprint, as a damaged program can stop the
    process when it runs; a file that is unchanged since an earlier check is not read again (`verified.py`). Raises
    ModelFolderError for an unusable folder, BackendError if the backend that it was exported for is not installed.
    """
    name = folder.manifest.backend
    if name not in PROGRAM_BACKENDS:
        known = ", ".join(PROGRAM_BACKENDS)
        raise ModelFolderError(f"{folder.path}: exported for backend {name!r}; this build runs {known}")
    try:
        backend_id = load_backend(name)
    except BackendError as error:
        raise BackendError(f"{folder.path} was exported for backend {name!r}: {error}") from error
    if verify and _key(folder.model_path, backend_id) not in _programs:
        folder.verify(remembered=True)
    try:
        program = load_program(folder.model_path, backend_id)
    except _core.ProgramError as error:
        raise ModelFolderError(str(error)) from error
    _check_agreement(folder, program)
    return program


def open_session(
    folder: ModelFolder,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    max_sequences: int = 256,
    policy: str = "full",
    window: int = 0,
    sinks: int = 0,
    verify: bool = True,
) -> ExecuTorchSession:
    """Opens a cache over a model folder's program, for an Engine. `session.cache` is its bookkeeping, with draft trees.

    With a `window` each layer sees at most the last `window` positions and the first `sinks`; 0 for no window.

    `verify` and errors are those of `load_folder`; raises ModelFolderError also for an invalid option.
    """
    program = load_folder(folder, verify=verify)
    try:
        return program.make_session(
            capacity=capacity,
            kv_dtype=kv_dtype,
            min_chunk=min_chunk,
            max_sequences=max_sequences,
            policy=policy,
            window=window,
            sinks=sinks,
        )
    except _core.Error as error:
        raise ModelFolderError(f"{folder.path}: no cache can be made: {error}") from error
    except TypeError as error:  # numbers beyond 32 bits
        raise ModelFolderError(
            f"{folder.path}: no cache can be made with capacity {capacity!r}, min_chunk {min_chunk!r} and "
            f"max_sequences {max_sequences!r}: integers below 2**31 are needed"
        ) from error


def _load(
    loaded: weakref.WeakValueDictionary[_Key, _Loaded], kind: type[_Loaded], path: str | Path, backend_id: str
) -> _Loaded:
    key = _key(Path(path), backend_id)
    with _loading_alone(key):
        program = loaded.get(key)
        if program is None:
            program = kind(key[0], backend_id)
            loaded[key] = program
        return program


def _check_agreement(folder: ModelFolder, program: ExecuTorchProgram) -> None:
    manifest = folder.manifest
    metadata = read_kv_cache_metadata(program.metadata)
    described = KvCacheMetadata(
        n_layers=manifest.n_layers,
        n_kv_heads=manifest.n_kv_heads,
        head_dim=manifest.head_dim,
        windows=manifest.windows,
        shapes=manifest.shapes,
    )
    declared = {name: getattr(manifest, name) for name in program.info}
    if metadata != described or program.info != declared:
        raise ModelFolderError(
            f"{folder.path}: the manifest and the program describe different models ({declared}, {described} and "
            f"{program.info}, {metadata}). Export the model again"
        )


def _key(path: Path, backend_id: str) -> _Key:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except OSError:
        return str(path), 0, 0, 0, backend_id  # loading says what is wrong with it
    return str(real), status.st_ino, status.st_mtime_ns, status.st_size, backend_id


@contextmanager
def _loading_alone(key: _Key) -> Iterator[None]:
    # Loads of different files go on at the same time; of one file, the second waits and finds it loaded.
    with _lock:
        lock = _loading.setdefault(key, threading.Lock())
    with lock:
        yield
    with _lock:
        _loading.pop(key, None)


def _let_go_of_the_pool_at_exit() -> None:
    # A forked child has the thread pool without its threads, and destroying that at exit can crash. Asking for the pool
    # makes ExecuTorch leave the old one alone.
    atexit.register(get_threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_the_pool_at_exit)
