"""`agentkv export` and `agentkv export-draft`: model folders from checkpoints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from agentkv_runtime.backends import BACKENDS, PROGRAM_BACKENDS
from agentkv_runtime.folder.manifest import DType, Quantization, Scales, WeightRecipe

from .._console.console import escaped, stdout
from .._console.progress import displayed
from .._types.show import bytes_text
from .weights import loss_text, size_text

if TYPE_CHECKING:
    ProgramBackend: TypeAlias = str
    HeadQuantization: TypeAlias = Quantization
else:  # what typer lets through
    ProgramBackend = Literal[tuple(PROGRAM_BACKENDS)]
    HeadQuantization = Literal[BACKENDS["cpu"].quantizations]  # heads run on the CPU


def export(
    source: Annotated[
        Path, typer.Argument(metavar="SRC_FOLDER", help="Folder of a Hugging Face model, or a GGUF file.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT_FOLDER", help="Model folder to write.")],
    backend: Annotated[ProgramBackend, typer.Option(help="What runs it: cpu, or mlx (Apple silicon).")] = "cpu",
    quant: Annotated[
        Quantization | None,
        typer.Option(
            help="Weights: none; file (a GGUF file's own blocks, its default); on cpu q4 (the default of others), q5,"
            " q6, q8 (blocks of about 5, 6, 7 and 8.5 bits), 8da8w, 8da4w (deprecated: q4 keeps more); on mlx affine8,"
            " affine4."
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With q4 to q8: text to measure on which weights count; without it one that ships with Python.",
        ),
    ] = None,
    recipe: Annotated[
        WeightRecipe | None,
        typer.Option(
            help="With q4 to q8: which weights get more bits; fixed: those that usually count, without torch;"
            " measured: those that count on a text. Without it fixed where the model is of a family that needs no"
            " torch, and there is no --calibrate."
        ),
    ] = None,
    scales: Annotated[
        Scales,
        typer.Option(help="With 8da4w: scales; search for the least error, or largest (round to nearest)."),
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
    mtp: Annotated[
        bool | None,
        typer.Option(
            "--mtp/--no-mtp",
            help="The checkpoint's own multi-token prediction layer, to draft with; without it where there is one.",
            show_default=False,
        ),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of a LoRA adapter (peft), merged into the weights.")
    ] = None,
) -> None:
    """Export a Hugging Face model, or a GGUF file, to a model folder. The families that people run most need no torch:
    as safetensors with q4 to q8, and as GGUF files in their own blocks. Running the result needs none at all."""
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
            mtp=mtp,
            calibrate=calibrate,
            recipe=recipe,
            adapter=adapter,
            progress=display.tell,
            done=display.done,
        )
    shown = escaped(shlex.quote(str(folder.path)))
    stdout.print(
        f"Wrote {shown} ({size_text(folder.manifest)}). Look at it with: agentkv inspect {shown}", soft_wrap=True
    )
    if (loss := loss_text(folder.manifest)) is not None:
        stdout.print(f"{loss} Measure what that means: agentkv inspect {shown} --quality", soft_wrap=True)
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
    if folder.mtp_path is not None:
        size = bytes_text(folder.mtp_path.stat().st_size)
        stdout.print(f"Its multi-token prediction layer takes {size} more (--no-mtp): draft with --speculative mtp.")
    if folder.draft_path is not None:
        stdout.print("The draft head in the folder stays. If it is of another model, opening it says so.")


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
    from agentkv_runtime.errors import ModelFolderError
    from agentkv_runtime.export.draft_folder import export_draft
    from agentkv_runtime.export.quiet import quiet_libraries
    from agentkv_runtime.folder.draft_manifest import DRAFT_MANIFEST_NAME, record_acceptance
    from agentkv_runtime.folder.model_folder import is_model_folder

    from .._bench.acceptance import measure_acceptance
    from .._bench.prompts import default_prompts
    from .._types.errors import AgentKVError

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
