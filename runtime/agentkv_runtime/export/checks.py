"""Checks of an export's inputs, before its long steps. Imports no torch."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.contents import config_missing, files_to_choose, tokenizer_missing
from agentkv_runtime.folder.manifest import MANIFEST_NAME
from agentkv_runtime.folder.staging import holds_nothing
from agentkv_runtime.hf.config_check import check_config
from agentkv_runtime.sources.source import is_gguf

__all__ = [
    "check_bounds",
    "check_rows",
    "check_source",
    "check_target",
    "check_torch",
    "check_value",
    "disk_errors",
    "needs",
]

_MOST_OF_A_VALUE = 4 << 30  # bytes; models stay far below unless their bounds are strange
_MOST_ROWS = 8192


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turns OSErrors of the block into ExportErrors that name the path."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ExportError(
                f"{out}: its disk is full. An export takes about as many bytes as its weights: make room, "
                "or give another place (AGENTKV_HOME is that of models that are opened). Nothing was exported"
            ) from error
        raise ExportError(f"{error.filename or out}: {error.strerror or error}. Nothing was exported") from error


def check_bounds(max_tokens: int, max_logits: int) -> None:
    """Raises ExportError for bounds of a forward below 2."""
    if max_tokens < 2 or max_logits < 2:
        raise ExportError(f"max_tokens and max_logits must be at least 2, not {max_tokens} and {max_logits}")


def check_rows(max_tokens: int, max_logits: int) -> None:
    """Raises ExportError for bounds of a forward that are out of range."""
    for name, value in {"max_tokens": max_tokens, "max_logits": max_logits}.items():
        if not 2 <= value <= _MOST_ROWS:
            raise ExportError(
                f"{name} is {value}, but it must be 2 to {_MOST_ROWS}: memory for so many rows is reserved when the "
                "program is loaded, and longer prompts take several forwards anyway"
            )


def check_value(holder: str, size: int, bound: str, rows: int) -> None:
    """Raises ExportError, naming a number of rows that fits, if a value of `size` bytes at `rows` exceeds 4 GiB."""
    if size > _MOST_OF_A_VALUE:
        raise ExportError(
            f"{holder} holds a value of {size / 2**30:.1f} GiB. With {bound} {max(2, rows * _MOST_OF_A_VALUE // size)} "
            "it would take 4 GiB or less"
        )


def check_source(src: Path) -> None:
    """Raises ExportError unless `src` is a GGUF file, or a Hugging Face folder with weights, a tokenizer and the config
    of these weights."""
    if is_gguf(src):
        return
    if not src.is_dir():
        kind = "file" if src.suffix.lower() == ".gguf" else "folder"
        what = "a file, but no GGUF file" if src.is_file() else f"no such {kind}"
        raise ExportError(f"{src}: {what}. Give the folder of a Hugging Face model, or a GGUF file")
    if (src / MANIFEST_NAME).is_file():
        raise ExportError(f"{src}: already an exported model folder. Give the Hugging Face folder it came from")
    has_weights = any(src.glob("*.safetensors")) or any(src.glob("pytorch_model*.bin"))
    if not has_weights and (instead := files_to_choose(src)):
        raise ExportError(f"{src}: {instead}")
    if not (src / "config.json").is_file():
        raise ExportError(f"{src}: not a Hugging Face folder: it {config_missing(src)}")
    if not has_weights:
        raise ExportError(f"{src}: holds no weights (*.safetensors). Download the whole model")
    if not (src / "tokenizer.json").is_file():
        raise ExportError(f"{src}: {tokenizer_missing(src)}")
    check_config(src)


def check_target(out: Path) -> None:
    """Raises ExportError if `out` exists and is neither a model folder nor an empty one."""
    if out.exists() and not (out.is_dir() and ((out / MANIFEST_NAME).is_file() or holds_nothing(out))):
        raise ExportError(f"{out}: exists and is no model folder of agentkv; it is left as it is. Give another folder")


def check_torch() -> None:
    """Raises ExportError, saying what to install, if a package that export needs is missing. Imports none."""
    for name in ("torch", "executorch", "transformers"):
        if find_spec(name) is None:
            raise ExportError(needs(name))


def needs(missing: object) -> str:
    """Error message that names the missing package and the commands that install it."""
    return (
        f"Export needs torch and executorch, and {missing} is not installed: "
        "pip install torch==2.13.0, then pip install 'agentkv-sdk[export]'"
    )
