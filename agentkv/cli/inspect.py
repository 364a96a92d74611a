"""`agentkv inspect`: what an exported model is, and how good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from agentkv_runtime.backends import BACKENDS
from agentkv_runtime.folder.manifest import FeatureInfo, Manifest
from agentkv_runtime.folder.metadata import Kept, LayerShape

from .._console.console import print_rows
from .._console.progress import Display, displayed
from .._types.show import bytes_text
from .quality import Measurement
from .weights import print_weights, quantization_text, size_text

if TYPE_CHECKING:
    from agentkv_runtime.folder.metadata import KvCacheMetadata


def inspect(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Model folder, GGUF file, or the name of a model that was pulled, or nano."
        ),
    ],
    verify: Annotated[bool, typer.Option(help="Compare the program with its fingerprint.")] = True,
    quality: Annotated[
        bool,
        typer.Option(
            "--quality", help="Also run it: perplexity on a text, divergence from its source; and errors of weights."
        ),
    ] = False,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --quality: the text, UTF-8; without it Python's own help topics."),
    ] = None,
    windows: Annotated[
        int, typer.Option(min=1, max=10_000, help="With --quality: windows of 512 tokens of the text, at most.")
    ] = 10,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="With --quality: the Hugging Face folder or GGUF file to compare with. Needs torch."
        ),
    ] = None,
    all_weights: Annotated[
        bool, typer.Option("--all", help="With --quality: every weight, and not only the worst.")
    ] = False,
) -> None:
    """Print what an exported model is: architecture, sizes, bounds, bytes per cached token; and how good it is."""
    from agentkv_runtime.folder.metadata import KvCacheMetadata
    from agentkv_runtime.folder.model_folder import read_model_folder

    from ..models._resolve import folder_called

    if not quality and (text is not None or source is not None or all_weights):
        raise typer.BadParameter("--text, --source and --all say what --quality does: add --quality")
    with displayed("stopped") as display:
        model = read_model_folder(_laid_out(folder_called(folder), display))
        if verify:
            model.verify()
        tokenizer = model.tokenizer
        tokens, chat = tokenizer.vocab_size, tokenizer.has_chat_template
        ends = ", ".join(tokenizer.ends)
        draft = _draft_text(model.draft_path)
        layer = _draft_text(model.mtp_path)
        measurement = Measurement.planned(model, text, windows, source) if quality else None
    facts = model.manifest
    cache = KvCacheMetadata(
        facts.n_layers, facts.n_kv_heads, facts.head_dim, windows=facts.windows, shapes=facts.shapes
    )
    rows: list[tuple[str, str]] = [
        ("source", facts.source),
        ("architecture", facts.model_type),
        ("backend", facts.backend),
        ("quantisation", quantization_text(facts)),
        ("activations", facts.dtype),
        ("program", size_text(facts)),
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
        ("multi-token prediction", layer),
        ("fingerprint", facts.fingerprint),
        ("exported with", ", ".join(f"{name} {version}" for name, version in facts.exported_with.items())),
    ]
    print_rows(str(folder), rows)
    if measurement is not None:
        print_rows("quality", measurement.run())
        print_weights(facts, every=all_weights)


def _laid_out(path: Path, display: Display) -> Path:
    """The model folder that opening a GGUF file makes of it, made where there is none yet; other paths are theirs."""
    from agentkv_runtime.sources.source import is_gguf
    from agentkv_runtime.store.making import export_once, options_for

    if not is_gguf(path):
        return path
    options = options_for(own_bits=True)
    name = str(path.resolve())
    return export_once(path, name, options, progress=display.tell, done=display.done, note=display.note).path


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


def _draft_text(program: Path | None) -> str:
    from agentkv_runtime.folder.draft_manifest import read_draft_manifest

    if program is None:
        return "no"
    draft = read_draft_manifest(program.with_suffix(".json"))
    tokens = f"{draft.draft_vocab_size} of {draft.target_vocab_size} tokens"
    return f"{draft.kind}, {draft.quantization}, {tokens}, {bytes_text(draft.model_bytes)}"
