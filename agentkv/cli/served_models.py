"""The models that `agentkv serve` is given: one, several on the command line, or those of a file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder.small_files import read_bytes
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .._console.console import fail
from .._types.keywords import near_name
from .._types.offload import Offload
from .._types.show import preview, reason_of
from ..models._resolve import folder_called
from .options import Drafts, prefix_cache_options, strategy_called

if TYPE_CHECKING:
    from .._model.drafters import Speculative
    from ..serve.settings import ModelOptions

Speculation = Literal["none", Drafts, "draft"]
KEYS = "keys"
"""Table of a file that is no model's."""
_MOST_BYTES = 1 << 20  # of a file
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Count = Annotated[int, Field(ge=0, strict=True)]
_Positive = Annotated[int, Field(ge=1, strict=True)]
_Flag = Annotated[bool, Field(strict=True)]


class ModelTable(BaseModel):
    """One model with its options, as the command line and files name them."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: Path
    capacity: _Positive
    kv_dtype: str
    retain: _Count | None
    window: _Positive | None
    sinks: _Count
    quantize_after: _Positive | None
    speculative: Speculation
    draft: Path | None
    corpus: Path | None
    warm: Sequence[Path]
    prefix_cache: Path | None
    prefix_cache_bytes: _Positive | None
    quant: str | None
    threads: _Positive | None
    call_format: str | None
    rescue: _Flag
    steer_calls: _Flag
    call_threshold: Annotated[float, Field(ge=0, le=1, strict=True)] | None
    offload: Path | None
    offload_memory: _Count
    adapters: Mapping[str, Path] = {}

    def options(self) -> ModelOptions:
        """The same as the server takes it."""
        from ..serve.settings import ModelOptions

        how = {
            "model": self.model,
            "capacity": self.capacity,
            "kv_dtype": self.kv_dtype,
            "retain": self.retain,
            "window": self.window,
            "sinks": self.sinks,
            "quantize_after": self.quantize_after,
            "speculative": _strategy(self.speculative, self.draft, self.corpus),
            "quant": self.quant,
            "threads": self.threads,
            "call_format": self.call_format,
            "rescue": "steer" if self.steer_calls else self.rescue,
            "offload": Offload(folder=self.offload, memory_bytes=self.offload_memory, idle=0),
            **prefix_cache_options(self.prefix_cache, self.prefix_cache_bytes),
        }
        return ModelOptions(how=how, warm=self.warm, call_threshold=self.call_threshold, adapters=dict(self.adapters))


class GivenModels(NamedTuple):
    """The models of one server.

    Attributes:
        tables: by name; the only one of a single model by what it was called on the command line. No two of them and
            of their adapters have one name.
        several: whether they are opened on use.
        keys: keys for some of them.
    """

    tables: dict[str, ModelTable]
    several: bool
    keys: dict[str, list[str]]


def given_models(
    arguments: Sequence[str], file: Path | None, options: Mapping[str, Any], adapters: Sequence[str] = ()
) -> GivenModels:
    """The models that were asked for. `options` are those of all, where a file does not say others; `adapters`, each as
    NAME=FOLDER, are of a single one.

    Fails with a message for what cannot be meant, and for models that are not there.
    """
    if len(arguments) == 1 and file is None and ("=" not in arguments[0] or Path(arguments[0]).exists()):
        model = Path(arguments[0])
        name = model.resolve().name if model.exists() else str(model)
        single = {name: ModelTable(model=model, adapters=_adapters(adapters), **options)}
        _check_adapters(single)
        return GivenModels(single, several=False, keys={})
    if adapters:
        fail(
            "--adapter goes with a single model; give each of several its own in --models FILE: adapters = {NAME = ...}"
        )
    tables, keys = ({}, {}) if file is None else _read(file, options)
    for argument in arguments:
        name, path = _named(argument, argument, "each of several models")
        if name in tables:
            fail(f"there are two models called {name}: give each another name")
        tables[name] = ModelTable(model=path, **options)
    if not tables:
        fail("no model: give a FOLDER, NAME=FOLDER for each of several, or --models FILE")
    for name, table in tables.items():
        if not _is_there(table.model, partial(folder_called, quant=table.quant)):
            fail(f"model {name}: there is no {table.model}; give a folder that `agentkv export` wrote, or a GGUF file")
    _check_adapters(tables)
    return GivenModels(tables, several=True, keys=keys)


def _named(argument: str, shown: str, what: str) -> tuple[str, Path]:
    """Name and path of an argument NAME=FOLDER."""
    name, given, path = argument.partition("=")
    if not (name and given and path):
        fail(f"{shown} has no name: give {what} as NAME=FOLDER")
    return name, Path(path)


def _adapters(arguments: Sequence[str]) -> dict[str, Path]:
    """Adapters of the command line, by name."""
    found: dict[str, Path] = {}
    for argument in arguments:
        name, path = _named(argument, f"--adapter {argument}", "it")
        if name in found:
            fail(f"there are two adapters called {name}: give each another name")
        found[name] = path
    return found


def _check_adapters(tables: Mapping[str, ModelTable]) -> None:
    """Fails for adapters that are not there, and for names that are taken."""
    taken = set(tables)
    for table in tables.values():
        for name, path in table.adapters.items():
            if name in taken:
                fail(f"there are two models called {name}, one of them an adapter: give each another name")
            if not _is_there(path):
                fail(f"adapter {name}: there is no {path}; give a folder that peft wrote, or a GGUF file")
            taken.add(name)


def _is_there(path: Path, found: Callable[[Path], Path] = Path) -> bool:
    """Whether there is something at a path, or where `found` looks for what it names."""
    try:
        return found(path.expanduser()).exists()
    except (OSError, RuntimeError):  # a name that no file can have, a folder that may not be looked into, no such user
        return False


def _read(file: Path, options: Mapping[str, Any]) -> tuple[dict[str, ModelTable], dict[str, list[str]]]:
    """The models of a file, and its keys."""
    try:
        told = tomllib.loads(read_bytes(file, ModelFolderError, most=_MOST_BYTES).decode("utf-8-sig"))
    except ModelFolderError as error:
        fail(str(error))
    except (ValueError, RecursionError) as error:
        fail(f"{file} is no TOML: {error}")
    keys = told.pop(KEYS, {})
    tables = {name: _table(f"{file}, [{name}]", table, options) for name, table in told.items()}
    names = [*tables, *(adapter for table in tables.values() for adapter in table.adapters)]
    return tables, _keys(file, keys, names)


def _table(where: str, table: object, options: Mapping[str, Any]) -> ModelTable:
    if not isinstance(table, dict):
        fail(f"{where} is {preview(table)}, but it must be a table with `model` and options")
    if table.get("model") == "":
        fail(f"{where} has no model: its name is empty")
    try:
        return ModelTable.model_validate({**options, **table})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = str(fault["loc"][0])
        if fault["type"] == "extra_forbidden":
            near = near_name(name, ModelTable.model_fields)
            fail(f"{where} has {name}, which no model has; " + (f"did you mean {near}?" if near else "leave it out"))
        if fault["type"] == "missing":
            fail(f"{where} has no model: give it a folder, a GGUF file or a name as `model`")
        fail(f"{where}: {name} is {preview(fault['input'])}: {reason_of(fault)}")


def _keys(file: Path, told: object, models: Sequence[str]) -> dict[str, list[str]]:
    """Keys from the environment, each with its models. What stands in the file may be a key: no message shows it."""
    if not isinstance(told, dict):
        fail(f"{file}, [{KEYS}] must be a table: names of environment variables, each with a list of models")
    keys: dict[str, list[str]] = {}
    for number, (variable, names) in enumerate(told.items(), 1):
        key = os.environ.get(variable, "") if _VARIABLE.fullmatch(variable) else ""
        if not key:
            fail(
                f"{file}, [{KEYS}]: entry {number} is not called by an environment variable that is set; put the key "
                "into the environment, and the variable's name into the file"
            )
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            fail(f"{file}, [{KEYS}]: entry {number} must be a list of models")
        if unknown := [name for name in names if name not in models]:
            fail(f"{file}, [{KEYS}]: entry {number} names {unknown[0]}, but there is {', '.join(models)}")
        if key in keys:
            fail(f"{file}, [{KEYS}]: entry {number} has the same key as another one; give each its own")
        keys[key] = names
    return keys


def _strategy(name: Speculation, draft: Path | None, corpus: Path | None) -> Speculative | None:
    from .. import spec

    if (name == "draft") != (draft is not None):
        fail("--draft FOLDER goes with --speculative draft")
    if corpus is not None and "suffix" not in name:
        fail("--corpus FOLDER goes with --speculative suffix, suffix+eagle or suffix+mtp")
    if draft is not None:
        return spec.DraftModel(draft)
    return strategy_called(name, corpus) if name != "none" and name != "draft" else None
