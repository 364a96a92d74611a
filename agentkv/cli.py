"""The `agentkv` command: export a model, look at an exported one, measure it."""

from __future__ import annotations

import importlib.metadata
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from agentkv_runtime.backends import BACKENDS, PROGRAM_BACKENDS
from agentkv_runtime.manifest import DType, FeatureInfo, Manifest, Quantization, Scales
from agentkv_runtime.metadata import Kept, LayerShape
from rich.table import Table

from agentkv._bench.command import bench
from agentkv._console import bytes_text, escaped, print_rows, reporting, stdout
from agentkv._doctor import doctor
from agentkv._kept import list_models, pull, rm
from agentkv._progress import displayed
from agentkv._serving import serve
from agentkv.adapters.mcp.command import mcp
from agentkv.terminal.command import chat
from agentkv.trace.replay_command import replay
from agentkv.trace.view_command import view

if TYPE_CHECKING:
    from agentkv_runtime.folder import ModelFolder
    from agentkv_runtime.metadata import KvCacheMetadata

app = typer.Typer(
    help="Agents on forked KV-cache branches, on your own model and machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.command()(pull)
app.command("list")(list_models)
app.command()(rm)
app.command()(serve)
app.command()(chat)
app.command()(mcp)
app.command()(doctor)
app.command()(view)
app.command()(replay)


if TYPE_CHECKING:
    ProgramBackend: TypeAlias = str
    HeadQuantization: TypeAlias = Quantization
else:  # what typer lets through
    ProgramBackend = Literal[tuple(PROGRAM_BACKENDS)]
    HeadQuantization = Literal[BACKENDS["cpu"].quantizations]  # heads run on the CPU


def _print_version(asked: bool) -> None:
    if not asked:
        return
    try:
        version = importlib.metadata.version("agentkv-sdk")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    stdout.print(f"agentkv {version}", highlight=False)
    raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Agents on forked KV-cache branches, on your own model and machine."""


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(metavar="SRC_FOLDER", help="Folder of a Hugging Face model, or a GGUF file.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT_FOLDER", help="Model folder to write.")],
    backend: Annotated[ProgramBackend, typer.Option(help="What runs it: cpu, or mlx (Apple silicon).")] = "cpu",
    quant: Annotated[
        Quantization | None,
        typer.Option(
            help="Weights: none; on cpu file (a GGUF file's own blocks, which is its default), 8da8w (int8) or 8da4w"
            " (int4), with int8 activations; on mlx affine8 or affine4. Without it a Hugging Face folder's are none."
        ),
    ] = None,
    scales: Annotated[
        Scales,
        typer.Option(help="Scales of 4-bit weights: search for the least error, or largest (round to nearest)."),
    ] = "search",
    int8: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="With 8da4w: linear layers with 8 bits, as lm_head or '*.v_proj'; auto: those that lose most.",
        ),
    ] = None,
    embedding: Annotated[int, typer.Option(help="With 8da8w and 8da4w: bits of the token embedding, 16, 8 or 4.")] = 16,
    dtype: Annotated[
        DType,
        typer.Option(
            help="Activations and other weights: fp32; on mlx also fp16, which goes with the default cache, or bf16."
        ),
    ] = "fp32",
    max_tokens: Annotated[int, typer.Option(min=2, help="Rows that one forward takes at most, up to 8192.")] = 512,
    max_logits: Annotated[int, typer.Option(min=2, help="Logits rows that one forward returns, up to 8192.")] = 64,
    max_context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Positions that a history has at most. Long-rope models need it to go beyond their original context:"
            " all histories then take the long factors, where transformers switches with the length.",
        ),
    ] = None,
    features: Annotated[bool, typer.Option("--features", help="Also give out what EAGLE-3 draft heads read.")] = False,
    adapter: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of a LoRA adapter (peft), merged into the weights.")
    ] = None,
) -> None:
    """Export a Hugging Face model, or a GGUF file, to a model folder. Needs torch; running the result does not."""
    from agentkv_runtime.export.folder import export_folder
    from agentkv_runtime.export.quiet import quiet_libraries
    from agentkv_runtime.notes import shown_by

    with displayed("stopped; nothing was written") as display, quiet_libraries(), shown_by(display.note):
        folder = export_folder(
            source,
            target,
            backend=backend,
            quant=quant,
            scales=scales,
            int8=int8 or (),
            embedding=embedding,
            dtype=dtype,
            max_tokens=max_tokens,
            max_logits=max_logits,
            max_context=max_context,
            features=features,
            adapter=adapter,
            progress=display.tell,
            done=display.done,
        )
    size = bytes_text(folder.manifest.model_bytes)
    shown = escaped(shlex.quote(str(folder.path)))
    stdout.print(f"Wrote {shown} ({size}). Look at it with: agentkv inspect {shown}", soft_wrap=True)
    ends = ", ".join(folder.tokenizer.ends)
    stdout.print(f"A turn ends with {escaped(ends)}." if ends else "No token ends a turn: answers run to max_tokens.")
    positions, tokens = folder.manifest.max_positions, folder.tokenizer.vocab_size
    if max_context is not None and positions is not None and positions < max_context:
        stdout.print(f"The model has {positions} positions: a history ends there, not at {max_context}.")
    if tokens > folder.manifest.vocab_size:
        stdout.print(
            f"The tokenizer has {tokens} tokens, the model only {folder.manifest.vocab_size}: prompts with others are "
            "refused."
        )
    if folder.draft_path is not None:
        stdout.print("The draft head in the folder stays. If it is of another model, opening it says so.")


@app.command("export-draft")
def export_draft(
    head: Annotated[Path, typer.Argument(metavar="HEAD_FOLDER", help="Folder of a published EAGLE-3 head.")],
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET_FOLDER", help="Folder of the model that it drafts for, as on Hugging Face."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT_FOLDER", help="Where to write draft.pte: the model folder, say.")],
    quant: Annotated[HeadQuantization, typer.Option(help="Weights of the head.")] = "none",
    max_tokens: Annotated[int, typer.Option(min=2, help="Rows that one forward takes at most, up to 8192.")] = 512,
    max_logits: Annotated[int, typer.Option(min=2, help="Rows that one forward returns at most, up to 8192.")] = 64,
) -> None:
    """Export an EAGLE-3 draft head for a model that was exported with --features. Needs torch."""
    import anyio
    from agentkv_runtime.draft_manifest import DRAFT_MANIFEST_NAME, record_acceptance
    from agentkv_runtime.errors import ModelFolderError
    from agentkv_runtime.export.draft_folder import export_draft
    from agentkv_runtime.export.quiet import quiet_libraries
    from agentkv_runtime.folder import is_model_folder

    from ._bench.acceptance import measure_acceptance
    from ._bench.prompts import default_prompts
    from ._errors import AgentKVError

    with displayed("stopped; nothing was written") as display, quiet_libraries():
        draft = export_draft(
            head,
            target,
            out,
            quant=quant,
            max_tokens=max_tokens,
            max_logits=max_logits,
            progress=display.tell,
        )
    unmeasured = None
    if is_model_folder(out):
        with displayed("stopped; the head was written, but what the model accepts of it was not measured") as display:
            display.tell("measuring what the model accepts of it")
            try:
                acceptance = anyio.run(measure_acceptance, out, out, default_prompts(out))
                record_acceptance(out / DRAFT_MANIFEST_NAME, acceptance)
            except (AgentKVError, ModelFolderError) as error:  # such as a backend that is not here
                unmeasured = error
    stdout.print(f"Wrote {escaped(out / 'draft.pte')} ({bytes_text(draft.model_bytes)})")
    if unmeasured is not None:
        stdout.print(f"What the model accepts of it was not measured: {escaped(str(unmeasured))}", soft_wrap=True)


@app.command()
def inspect(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Model folder, or the name of a model that was pulled, or nano.")
    ],
    verify: Annotated[bool, typer.Option(help="Compare the program with its fingerprint.")] = True,
    quality: Annotated[
        bool, typer.Option("--quality", help="Also print what quantisation lost of each weight.")
    ] = False,
) -> None:
    """Print what an exported model is: architecture, sizes, bounds, bytes per cached token."""
    from agentkv_runtime.folder import read_model_folder
    from agentkv_runtime.metadata import KvCacheMetadata

    from .models._called import folder_called

    with reporting():
        model = read_model_folder(folder_called(folder))
        if verify:
            model.verify()
        tokenizer = model.tokenizer
        tokens, chat = tokenizer.vocab_size, tokenizer.has_chat_template
        ends = ", ".join(tokenizer.ends)
        draft = _draft_text(model)
    facts = model.manifest
    cache = KvCacheMetadata(
        facts.n_layers, facts.n_kv_heads, facts.head_dim, windows=facts.windows, shapes=facts.shapes
    )
    rows: list[tuple[str, str]] = [
        ("source", facts.source),
        ("architecture", facts.model_type),
        ("backend", facts.backend),
        ("quantisation", facts.quantization),
        ("activations", facts.dtype),
        ("program", bytes_text(facts.model_bytes)),
        ("layers", _layers_text(facts)),
        ("K/V heads", _heads_text(facts)),
        ("vocabulary", f"{facts.vocab_size} logits, {tokens} tokens"),
        ("positions", _positions_text(facts)),
        ("one forward", f"up to {facts.max_tokens} rows, logits of up to {facts.max_logits}"),
        *_kv_rows(facts.backend, cache),
        *_state_rows(facts),
        ("features", _features_text(facts.features)),
        ("call format", facts.call_format or "found when opened"),
        ("chat template", "yes" if chat else "no"),
        ("a turn ends with", ends or "no token"),
        ("draft head", draft),
        ("fingerprint", facts.fingerprint),
        ("exported with", ", ".join(f"{name} {version}" for name, version in facts.exported_with.items())),
    ]
    print_rows(str(folder), rows)
    if quality:
        stdout.print(_quality_text(facts), soft_wrap=not facts.weight_errors)


def _layers_text(facts: Manifest) -> str:
    windowed = sum(1 for window in facts.windows if window)
    states = sum(shape.kept.has_states for shape in facts.shapes)
    convolutions = sum(shape.kept == Kept.INPUTS for shape in facts.shapes)
    if states or convolutions:  # which may be two of one layer
        attention = facts.n_layers - states - convolutions
        return f"of the cache: {attention} of attention, {states} with states, {convolutions} convolutions"
    return f"{facts.n_layers}" + (f", {windowed} of them with a sliding window" if windowed else "")


def _heads_text(facts: Manifest) -> str:
    layers = Counter(map(_rows_text, facts.shapes))
    if len(layers) < 2:
        return next(iter(layers), f"{facts.n_kv_heads} of {facts.head_dim}")
    return "; ".join(f"{rows} in {count} layers" for rows, count in layers.items())


def _rows_text(shape: LayerShape) -> str:
    if shape.kept == Kept.LATENT:
        return f"{shape.n_kv_heads} of {shape.k_dim}, values among them"
    if shape.kept == Kept.INPUTS:
        return f"a convolution of {shape.n_kv_heads * shape.k_dim} channels"
    if shape.kept.has_states:
        states = shape.n_kv_heads * shape.v_heads
        return f"states of {states} times {shape.k_dim} by {shape.v_dim} ({shape.state_bytes / 1024:,.0f} KiB)"
    widths = str(shape.k_dim) if shape.k_dim == shape.v_dim else f"{shape.k_dim} and {shape.v_dim}"
    return f"{shape.n_kv_heads} of {widths}"


def _quality_text(facts: Manifest) -> Table | str:
    if not facts.weight_errors:
        return "Of weights that are not quantised nothing is lost; older exports and MLX's do not say."
    table = Table("layer", "bits", "error", title="relative error of weights", title_justify="left", box=None)
    for name, error in sorted(facts.weight_errors.items(), key=lambda each: -each[1]):
        table.add_row(escaped(name), str(facts.weight_bits.get(name, "")), f"{100 * error:.2f}%")
    return table


def _kv_rows(backend: str, cache: KvCacheMetadata) -> Iterator[tuple[str, str]]:
    for dtype in BACKENDS[backend].kv_dtypes if backend in BACKENDS else ():
        try:
            yield f"K/V per token, {dtype}", bytes_text(cache.kv_bytes_per_token(dtype, backend))
        except ValueError:  # codes do not fit every head_dim
            continue


def _state_rows(facts: Manifest) -> Iterator[tuple[str, str]]:
    size = sum(shape.state_bytes for shape in facts.shapes)
    if size:
        yield "states", f"{bytes_text(size)} for each block of 64 positions that is held"


def _positions_text(facts: Manifest) -> str:
    trained = f", trained on {facts.trained_positions}" if facts.trained_positions else ""
    return f"{facts.max_positions or 'not said'}{trained}"


def _features_text(features: FeatureInfo | None) -> str:
    if features is None:
        return "none"
    return f"{features.width} floats per row, after layers {', '.join(map(str, features.layers))}"


def _draft_text(model: ModelFolder) -> str:
    from agentkv_runtime.draft_manifest import DRAFT_MANIFEST_NAME, read_draft_manifest

    if model.draft_path is None:
        return "no"
    draft = read_draft_manifest(model.path / DRAFT_MANIFEST_NAME)
    tokens = f"{draft.draft_vocab_size} of {draft.target_vocab_size} tokens"
    return f"{draft.kind}, {draft.quantization}, {tokens}, {bytes_text(draft.model_bytes)}"


if __name__ == "__main__":
    from agentkv_command import main

    main()
