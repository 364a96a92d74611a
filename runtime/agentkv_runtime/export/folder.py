"""Export of a Hugging Face folder to a model folder: the program, and everything that must travel with it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.target import choose_target
from agentkv_runtime.folder import MODEL_NAME, ModelFolder, file_fingerprint, read_model_folder
from agentkv_runtime.manifest import MANIFEST_NAME, DType, Manifest, Quantization, write_manifest

__all__ = ["Progress", "check_source", "export_folder", "tool_versions"]

Progress = Callable[[str], None]
"""Told in a few words what begins now."""

_COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_TOOLS = ("agentkv-sdk", "executorch", "torch", "torchao", "transformers")


@dataclass(frozen=True)
class _Options:
    """How a model is lowered; named as the parameters of `lower_model` are."""

    backend: str
    quant: Quantization
    dtype: DType
    max_tokens: int
    max_logits: int
    max_context: int | None
    features: bool


def export_folder(
    src: str | Path,
    out: str | Path,
    *,
    backend: str = "cpu",
    quant: Quantization = "none",
    dtype: DType = "fp32",
    max_tokens: int = 512,
    max_logits: int = 64,
    max_context: int | None = None,
    features: bool = False,
    progress: Progress | None = None,
) -> ModelFolder:
    """Exports the model in `src` for a backend, "cpu" or "mlx", and writes the model folder `out`.

    `out` appears at the end and whole, or not at all; one that agentkv wrote before is replaced. One forward of the
    program takes up to `max_tokens` rows and returns the logits of up to `max_logits`; memory for both is reserved at
    load. A history may have the positions that the manifest says, `max_context` at most; a long-rope model goes beyond
    its original context only with a `max_context` above it, and then turns short histories by its long factors, too.
    With `features` it also returns what EAGLE-3 draft heads read. Activations, and weights that are not
    quantised, become `dtype`. Raises ExportError for a quantisation or dtype that the backend does not have, for a
    folder without a model or tokenizer, for an `out` that holds something else, and for a model that cannot be
    exported.
    """
    src, out = Path(src), Path(out)
    tell = progress or (lambda _: None)
    choose_target(backend, quant, dtype)
    check_source(src)
    _check_target(out)
    if max_tokens < 2 or max_logits < 2:
        raise ExportError(f"max_tokens and max_logits must be at least 2, not {max_tokens} and {max_logits}")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _write(src, staging, _Options(backend, quant, dtype, max_tokens, max_logits, max_context, features), tell)
        os.chmod(staging, 0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return read_model_folder(out)


def check_source(src: Path) -> None:
    """Raises ExportError unless `src` is a Hugging Face folder with weights and a tokenizer."""
    if not src.is_dir():
        raise ExportError(f"{src}: no such folder. Give the folder of a Hugging Face model")
    if (src / MANIFEST_NAME).is_file():
        raise ExportError(f"{src}: already an exported model folder. Give the Hugging Face folder it came from")
    if not (src / "config.json").is_file():
        raise ExportError(f"{src}: not a Hugging Face folder: it has no config.json")
    if not any(src.glob("*.safetensors")) and not any(src.glob("pytorch_model*.bin")):
        raise ExportError(f"{src}: holds no weights (*.safetensors). Download the whole model")
    if not (src / "tokenizer.json").is_file():
        raise ExportError(f"{src}: has no tokenizer.json, which running the model needs")


def _check_target(out: Path) -> None:
    if out.exists() and not (out.is_dir() and ((out / MANIFEST_NAME).is_file() or not any(out.iterdir()))):
        raise ExportError(f"{out}: exists and is no model folder of agentkv; it is left as it is. Give another folder")


def _write(src: Path, folder: Path, options: _Options, tell: Progress) -> None:
    tell("loading torch")
    try:
        from agentkv_runtime.export.lower import load_model, lower_model
    except ImportError as error:
        raise ExportError(
            f"export needs torch and executorch, and {error.name or error} is not installed: "
            "pip install torch==2.13.0, then pip install 'agentkv-sdk[export]'"
        ) from error
    tell("loading the model")
    model = load_model(src)
    try:
        lowered = lower_model(model, **asdict(options), progress=tell)
    except ValueError as error:  # what the model or the quantisation does not allow
        raise ExportError(f"{src}: {error}") from error
    tell("writing the folder")
    lowered.write(folder / MODEL_NAME)
    for name in _COMPANIONS:
        if (src / name).is_file():
            shutil.copyfile(src / name, folder / name)
    config = json.loads((src / "config.json").read_text(encoding="utf-8"))
    _keep_ends(folder / "generation_config.json", config)
    write_manifest(_manifest(src, folder, config, lowered, options), folder / MANIFEST_NAME)


def _keep_ends(path: Path, config: dict[str, Any]) -> None:
    # Older models say in config.json alone which tokens end a generation.
    ends = config.get("eos_token_id")
    if ends is not None and not path.is_file():
        path.write_text(json.dumps({"eos_token_id": ends}) + "\n", encoding="utf-8")


def _manifest(src: Path, folder: Path, config: dict[str, Any], lowered: Any, options: _Options) -> Manifest:
    metadata = lowered.metadata
    return Manifest(
        backend=options.backend,
        quantization=options.quant,
        dtype=options.dtype,
        source=config.get("_name_or_path") or src.resolve().name,
        model_type=config.get("model_type", "unknown"),
        fingerprint=file_fingerprint(folder / MODEL_NAME),
        model_bytes=(folder / MODEL_NAME).stat().st_size,
        vocab_size=lowered.vocab_size,
        max_tokens=options.max_tokens,
        max_logits=options.max_logits,
        max_positions=lowered.max_positions,
        n_layers=metadata.n_layers,
        n_kv_heads=metadata.n_kv_heads,
        head_dim=metadata.head_dim,
        windows=metadata.windows,
        features=lowered.features,
        exported_with=tool_versions(),
    )


def tool_versions() -> dict[str, str]:
    """Versions of the packages that make a program."""
    found: dict[str, str] = {}
    for name in _TOOLS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
