"""Export of a model to a model folder: the program, and everything that must travel with it."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import ExportError, TokenizerError
from agentkv_runtime.export.choices import OWN_BLOCKS, check_quantization
from agentkv_runtime.export.progress import Done, Progress, Stage, model_size, reached, sharing
from agentkv_runtime.export.staging import holds_nothing, install, staged
from agentkv_runtime.export.target import choose_target, usual_quantization
from agentkv_runtime.export.waiting import wait_asleep
from agentkv_runtime.folder import MODEL_NAME, ModelFolder, file_fingerprint, read_model_folder, read_tokenizer
from agentkv_runtime.formats import format_name
from agentkv_runtime.manifest import MANIFEST_NAME, DType, Manifest, Quantization, Scales, write_manifest
from agentkv_runtime.small_files import read_object
from agentkv_runtime.sources.adapter_config import read_adapter_config
from agentkv_runtime.sources.source import described, is_gguf
from agentkv_runtime.tokenizer import TOKENIZER_FILES, Tokenizer

if TYPE_CHECKING:
    from agentkv_runtime.export.quantization import Recipe

__all__ = ["check_rows", "check_source", "check_torch", "disk_errors", "export_folder", "tool_versions"]

_MOST_ROWS = 8192
_LARGE = 64 << 20  # bytes
_TOOLS = ("agentkv-sdk", "executorch", "torch", "torchao", "transformers")


@dataclass(frozen=True)
class _Options:
    """How a model is exported."""

    quant: Quantization
    scales: Scales
    int8: tuple[str, ...]
    embedding: int
    backend: str
    dtype: DType
    max_tokens: int
    max_logits: int
    max_context: int | None
    features: bool
    calibrate: Path | None

    def lowering(self) -> dict[str, Any]:
        """What `lower_model` takes of it, under its names."""
        taken = asdict(self)
        for name in ("quant", "scales", "int8", "embedding", "calibrate"):
            del taken[name]
        return taken


@dataclass(frozen=True)
class _Source:
    """What is exported."""

    weights: Path
    """A Hugging Face folder, or a GGUF file."""
    described: Path
    """Where its config and its tokenizer are."""
    adapter: Path | None
    name: str


def export_folder(
    src: str | Path,
    out: str | Path,
    *,
    backend: str = "cpu",
    quant: Quantization | None = None,
    scales: Scales = "search",
    int8: Sequence[str] = (),
    embedding: int = 16,
    dtype: DType = "fp32",
    max_tokens: int = 512,
    max_logits: int = 64,
    max_context: int | None = None,
    features: bool = False,
    calibrate: str | Path | None = None,
    adapter: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    done: Done | None = None,
) -> ModelFolder:
    """Exports the model `src` for a backend, "cpu" or "mlx", and writes the model folder `out`.

    `src` is a Hugging Face folder or a GGUF file. `adapter` is the folder of a LoRA adapter, as peft writes it,
    which is merged into the weights. The manifest calls the model `name`, which is
    what its config says, or else the source's own name.

    `out` appears at the end and whole, or not at all. In one that agentkv wrote before, the model's own files are
    replaced and everything else stays, a draft head too; programs that are open meanwhile keep what they opened,
    because new files are renamed into place. Where this machine has the backend, the program is run and compared with
    the model first.

    One forward of the program takes up to `max_tokens` rows and returns the logits of up to `max_logits`; memory for
    both is reserved at load, so both are 2 to 8,192. A history may have the positions that the manifest says,
    `max_context` at most; a long-rope model goes beyond its original context only with a `max_context` above it, and
    then turns short histories by its long factors, too. With `features` it also returns what EAGLE-3 draft heads read.
    Activations, and weights that are not quantised, become `dtype`.

    `quant` of "file" runs the blocks that a GGUF file has, and is the default of such a file without an adapter. The
    CPU takes them as they are, with activations in 8 bits for each block of inputs. MLX takes the codes of types that
    give 32 numbers a scale, and gives the others new codes of 8 bits. "q4", "q5", "q6" and "q8" make such blocks of any
    weights, of the types that lose least of the model in so many bits on average: a text, in the file `calibrate` or
    else one that ships with Python, is read first to see what an error in each weight costs. "q4" is the default of
    other models for the CPU, "affine4" of those for MLX; "none" quantises nothing.

    `scales` says how those of 4-bit weights are chosen: "search" for the least error of each group, "largest" rounds to
    nearest. With 8da4w the linear layers whose names match a pattern in `int8` (as `fnmatch` has them) get 8 bits, and
    with "auto" those whose weights lose most, a sixteenth of all; `embedding` is the bits of the token embedding, 16, 8
    or 4. The manifest records the bits of each weight, and what was lost of it.

    `progress` is told in a few words what begins now, and `done` the share of the time that is over, 0 to 1, as far as
    that can be told.

    Weights are read, packed and dropped a part of the model at a time where the folder has them as safetensors under
    the names of transformers; other checkpoints are loaded as a whole first.

    Raises ExportError for a quantisation or dtype that the backend does not have, for a folder without a model or a
    tokenizer that works, for an `out` that holds something else or cannot be written, and for a model that cannot be
    exported or does not come out as it was.
    """
    src, out = Path(src), Path(out)
    tell = progress or (lambda _: None)
    quant = quant or usual_quantization(backend, own_bits=adapter is None and is_gguf(src))
    choose_target(backend, quant, dtype)
    check_quantization(quant, src, adapter, tuple(int8), embedding, scales, calibrate)
    check_rows(max_tokens, max_logits)
    if adapter is not None:
        read_adapter_config(Path(adapter))  # before anything takes long
    place = Path(os.path.realpath(out))  # what a link leads to
    with disk_errors(out), described(src) as folder:
        check_source(src)
        try:
            tokenizer = read_tokenizer(folder)
        except TokenizerError as error:
            raise ExportError(str(error)) from error
        _check_target(place)
        with staged(place) as staging:
            options = _Options(
                quant=quant,
                scales=scales,
                int8=tuple(int8),
                embedding=embedding,
                backend=backend,
                dtype=dtype,
                max_tokens=max_tokens,
                max_logits=max_logits,
                max_context=max_context,
                features=features,
                calibrate=Path(calibrate) if calibrate else None,
            )
            source = _Source(src, folder, Path(adapter) if adapter else None, name or "")
            with ExitStack() as shared:
                if done is not None:
                    shared.enter_context(sharing(done, *model_size(src, folder), measures=quant in OWN_BLOCKS))
                _write(source, staging, tokenizer, options, tell)
            tell("putting it in place")
            install(staging, place, (MODEL_NAME, *TOKENIZER_FILES), MANIFEST_NAME)
    return read_model_folder(out)


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turns what the operating system has against a path into ExportError."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"{error.filename or out}: {error.strerror or error}. Nothing was exported") from error


def check_rows(max_tokens: int, max_logits: int) -> None:
    """Raises ExportError for bounds of a forward that no program should have."""
    for name, value in {"max_tokens": max_tokens, "max_logits": max_logits}.items():
        if not 2 <= value <= _MOST_ROWS:
            raise ExportError(
                f"{name} is {value}, but it must be 2 to {_MOST_ROWS}: memory for so many rows is reserved when the "
                "program is loaded, and longer prompts take several forwards anyway"
            )


def check_source(src: Path) -> None:
    """Raises ExportError unless `src` is a Hugging Face folder with weights and a tokenizer, or a GGUF file."""
    if is_gguf(src):
        return
    if not src.is_dir():
        kind = "file" if src.suffix.lower() == ".gguf" else "folder"
        what = "a file, but no GGUF file" if src.is_file() else f"no such {kind}"
        raise ExportError(f"{src}: {what}. Give the folder of a Hugging Face model, or a GGUF file")
    if (src / MANIFEST_NAME).is_file():
        raise ExportError(f"{src}: already an exported model folder. Give the Hugging Face folder it came from")
    if not (src / "config.json").is_file():
        raise ExportError(f"{src}: not a Hugging Face folder: it has no config.json")
    if not any(src.glob("*.safetensors")) and not any(src.glob("pytorch_model*.bin")):
        raise ExportError(f"{src}: holds no weights (*.safetensors). Download the whole model")
    if not (src / "tokenizer.json").is_file():
        raise ExportError(f"{src}: has no tokenizer.json, which running the model needs")


def _check_target(out: Path) -> None:
    if out.exists() and not (out.is_dir() and ((out / MANIFEST_NAME).is_file() or holds_nothing(out))):
        raise ExportError(f"{out}: exists and is no model folder of agentkv; it is left as it is. Give another folder")


def check_torch() -> None:
    """Raises ExportError, saying what to install, where something that exporting needs is missing. Imports nothing."""
    for name in ("torch", "executorch", "transformers"):
        if find_spec(name) is None:
            raise ExportError(_needs(name))


def _needs(missing: object) -> str:
    return (
        f"export needs torch and executorch, and {missing} is not installed: "
        "pip install torch==2.13.0, then pip install 'agentkv-sdk[export]'"
    )


def _write(source: _Source, folder: Path, tokenizer: Tokenizer, options: _Options, tell: Progress) -> None:
    tell("loading torch")
    wait_asleep()
    reached(Stage.TORCH)
    try:
        from agentkv_runtime.export.blocks.importance import calibration_windows
        from agentkv_runtime.export.first_run import probe_tokens, run_model
        from agentkv_runtime.export.lower import lower_model
        from agentkv_runtime.export.opening import open_model
        from agentkv_runtime.export.quantization import Recipe
        from agentkv_runtime.export.spill import spilling_to
        from agentkv_runtime.hf.load import read_config
        from agentkv_runtime.hf.positions import long_factors
    except ImportError as error:
        raise ExportError(_needs(error.name or error)) from error
    tell("loading the model")
    reached(Stage.LOADING)
    text = read_config(source.described).get_text_config()
    tokens = probe_tokens(tokenizer, text.vocab_size)
    windows = calibration_windows(tokenizer, text, options.calibrate) if options.quant in OWN_BLOCKS else None
    with _named(source.weights, "cannot be loaded"):
        model, expected = open_model(source.weights, source.described, source.adapter, tokens)
    recipe = Recipe(options.quant, options.scales, options.int8, options.embedding)
    with spilling_to(folder):
        with _named(source.weights, "cannot be lowered"):
            lowered = lower_model(model, quant=recipe, **options.lowering(), calibration=windows, progress=tell)
        del model
        tell("writing the folder")
        reached(Stage.WRITING)
        lowered.write(folder / MODEL_NAME)
    for name in TOKENIZER_FILES:
        if (source.described / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source.described / name, folder / name)
    config = read_object(source.described / "config.json", ExportError)
    _keep_ends(folder / "generation_config.json", config)
    try:
        manifest = _manifest(source, folder, config, lowered, options, recipe, format_name(tokenizer))
    except ValueError as error:  # a number that no manifest can hold
        raise ExportError(
            f"{source.weights}: its config describes a model that agentkv cannot hold: {error}"
        ) from error
    write_manifest(manifest, folder / MANIFEST_NAME)
    del lowered
    if manifest.model_bytes > _LARGE:
        gc.collect()  # lowering leaves the weights behind in cycles, and opening the program takes as much again
    tell("running it once")
    # Long-rope models run with their long factors where transformers takes the short ones for few tokens.
    run_model(read_model_folder(folder), tokens, None if long_factors(text, options.max_context) else expected, tell)


@contextmanager
def _named(src: Path, what: str) -> Iterator[None]:
    """ExportError, naming the source, for whatever way torch, executorch and the model's own code fail in."""
    try:
        yield
    except (ExportError, OSError):
        raise
    except ValueError as error:  # what the model or the quantisation does not allow
        raise ExportError(f"{src}: {error}") from error
    except Exception as error:
        raise ExportError(f"{src}: {what}: {type(error).__name__}: {error}") from error


def _keep_ends(path: Path, config: dict[str, Any]) -> None:
    # Older models say in config.json alone which tokens end a generation.
    ends = config.get("eos_token_id")
    if ends is not None and not path.is_file():
        path.write_text(json.dumps({"eos_token_id": ends}) + "\n", encoding="utf-8")


def _manifest(
    source: _Source,
    folder: Path,
    config: dict[str, Any],
    lowered: Any,
    options: _Options,
    recipe: Recipe,
    call_format: str,
) -> Manifest:
    metadata = lowered.metadata
    return Manifest(
        backend=options.backend,
        quantization=options.quant,
        dtype=options.dtype,
        source=source.name or str(config.get("_name_or_path") or source.weights.resolve().name),
        model_type=str(config.get("model_type", "unknown")),
        fingerprint=file_fingerprint(folder / MODEL_NAME),
        model_bytes=(folder / MODEL_NAME).stat().st_size,
        vocab_size=lowered.vocab_size,
        max_tokens=options.max_tokens,
        max_logits=options.max_logits,
        max_positions=lowered.max_positions,
        trained_positions=lowered.trained_positions,
        n_layers=metadata.n_layers,
        n_kv_heads=metadata.n_kv_heads,
        head_dim=metadata.head_dim,
        windows=metadata.windows,
        shapes=metadata.shapes,
        features=lowered.features,
        call_format=call_format,
        weight_errors={name: float(f"{error:.3g}") for name, error in recipe.errors.items()},
        weight_bits=recipe.bits,
        weight_counts=recipe.counts,
        weight_bytes=recipe.bytes,
        weight_types=recipe.kinds,
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
