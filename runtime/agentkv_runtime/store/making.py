"""Exporting once: the first process that needs a model exports it; others wait for that export or find it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from importlib.metadata import version
from pathlib import Path

from agentkv_runtime.backends import PROGRAM_BACKENDS
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.checks import check_source, disk_errors
from agentkv_runtime.export.choices import check_recipe
from agentkv_runtime.export.progress import Done, Progress
from agentkv_runtime.export.target import choose_target, usual_quantization
from agentkv_runtime.folder.locks import check_locks
from agentkv_runtime.folder.manifest import FORMAT_VERSION, DType, Quantization, WeightRecipe
from agentkv_runtime.folder.model_folder import MODEL_NAME
from agentkv_runtime.folder.staging import install, staged
from agentkv_runtime.folder.verified import remember_fingerprint
from agentkv_runtime.notes import shown_by
from agentkv_runtime.store.content import content_digest
from agentkv_runtime.store.entries import Entry, Options, clear, entry_at, models_folder
from agentkv_runtime.store.home import locked

__all__ = ["check_store", "export_once", "find_export", "options_for"]

_CONTENTS = 2
"""Raised when exports get what older ones lack, so that those in a store are made again. 2: layers of each weight."""


def options_for(
    backend: str = "cpu",
    quant: Quantization | None = None,
    dtype: DType | None = None,
    max_context: int | None = None,
    own_bits: bool = False,
    recipe: WeightRecipe | None = None,
) -> Options:
    """Completes options with a backend's defaults; `own_bits` says whether the source is a GGUF file without adapter.

    Raises ExportError for a combination that a backend does not offer, and for a recipe that does not apply.
    """
    usual = PROGRAM_BACKENDS[backend].usual[1] if backend in PROGRAM_BACKENDS else "fp32"
    chosen = quant or usual_quantization(backend, own_bits)
    options = Options(backend=backend, quant=chosen, dtype=dtype or usual, max_context=max_context, recipe=recipe)
    choose_target(options.backend, options.quant, options.dtype)
    check_recipe(recipe, options.quant)
    return options


def export_once(
    source: Path,
    name: str,
    options: Options,
    *,
    adapter: Path | None = None,
    commit: str = "",
    progress: Progress,
    done: Done | None = None,
    note: Progress,
) -> Entry:
    """The export of a Hugging Face folder or a GGUF file, with an adapter merged into it; exports unless there is one.

    Equal files and options share an entry under all their names, to which `name` is added. An entry with missing or
    truncated files is exported again. Two processes that need the same entry wait for each other. A process that is
    killed leaves a complete entry or none. `progress` gets each step that begins, `done` the finished share of the
    time, and `note` messages for the user.

    Raises ExportError, as `export_folder` does, and StoreError if nothing can be stored.
    """
    check_source(source)
    check_store()
    progress("looking at the files")
    key = _key(source, options, adapter)
    with locked(key, lambda: note("Another process exports the same model: waiting for it.")):
        entry = entry_at(key)
        with disk_errors(models_folder()):
            if entry is not None and entry.whole:
                return entry.called(name, commit)
            clear(key)  # what somebody damaged, which would be in the way
            with shown_by(note):
                return _made(source, key, name, options, adapter, commit, progress, done)


def check_store() -> None:
    """Raises ExportError on a system where no export can be made, before what takes long."""
    with disk_errors(models_folder()):
        check_locks()


def find_export(source: Path, options: Options) -> Entry | None:
    """An existing export of a source, found without reading large files; None if there is none or it is uncertain.

    Raises ExportError for a file that cannot be read.
    """
    content = content_digest(source, known=True)
    entry = None if content is None else entry_at(_key_of(content, options, ""))
    return entry if entry is not None and entry.whole else None


def _made(
    source: Path,
    key: str,
    name: str,
    options: Options,
    adapter: Path | None,
    commit: str,
    progress: Progress,
    done: Done | None,
) -> Entry:
    from agentkv_runtime.export.folder import export_folder  # who finds an export needs nothing of it

    title = name.rstrip("/").rpartition("/")[2] or "model"
    entry = Entry(
        key=key,
        folder=re.sub(r"[^\w.+@-]", "-", title),
        options=options,
        names={name: time.time()},
        commit=commit,
        adapter=_adapter_digest(adapter),
    )
    with staged(entry.place) as staging:
        folder = export_folder(
            source,
            staging / entry.folder,
            backend=options.backend,
            quant=options.quant,
            dtype=options.dtype,
            max_context=options.max_context,
            recipe=options.recipe,
            adapter=adapter,
            name=title,
            progress=progress,
            done=done,
        )
        if _key(source, options, adapter) != key:
            raise ExportError(f"{source}: changed while it was exported. Export it again when it is whole")
        entry.write(staging)
        install(staging, entry.place, (), "")
    remember_fingerprint(entry.path / MODEL_NAME, folder.manifest.fingerprint)
    return entry.called(name, commit)


def _key(source: Path, options: Options, adapter: Path | None) -> str:
    return _key_of(content_digest(source), options, _adapter_digest(adapter))


def _adapter_digest(adapter: Path | None) -> str:
    return (content_digest(adapter) or "") if adapter else ""


def _key_of(content: str | None, options: Options, adapter: str | None) -> str:
    facts = {
        "format_version": FORMAT_VERSION,
        "contents": _CONTENTS,
        "agentkv": version("agentkv-sdk"),
        "content": content,
        "adapter": adapter,
        **options.model_dump(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
