"""Export by tracing with torch: any model of transformers, for every backend."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.asked import Options, Source
from agentkv_runtime.export.checks import needs
from agentkv_runtime.export.choices import OWN_BLOCKS
from agentkv_runtime.export.made import Made, WeightFacts
from agentkv_runtime.export.progress import Progress, Stage, reached
from agentkv_runtime.export.quiet import quiet_libraries
from agentkv_runtime.export.waiting import wait_asleep
from agentkv_runtime.folder.model_folder import MODEL_NAME
from agentkv_runtime.importing import few_collections
from agentkv_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from agentkv_runtime.export.first_run import Rows

__all__ = ["TOOLS", "named_errors", "trace_program"]

_LARGE = 64 << 20  # bytes
TOOLS = ("agentkv-sdk", "executorch", "torch", "torchao", "transformers")


def trace_program(
    source: Source, folder: Path, tokenizer: Tokenizer, options: Options, tokens: list[int], why: str, tell: Progress
) -> tuple[Made, Rows | None]:
    """Traces a model with torch, for the reason `why`, and writes its program; returns facts and expected logits.

    The logits are the model's own for `tokens`; None if they cannot be compared. Raises ExportError.
    """
    tell("loading torch")
    wait_asleep()
    reached(Stage.TORCH)
    with quiet_libraries():
        try:
            return _traced(source, folder, tokenizer, options, tokens, tell)
        except ImportError as error:
            raise ExportError(f"{source.weights}: {why}. {needs(error.name or error)}") from error


def _traced(
    source: Source, folder: Path, tokenizer: Tokenizer, options: Options, tokens: list[int], tell: Progress
) -> tuple[Made, Rows | None]:
    with few_collections():
        from agentkv_runtime.export.blocks.importance import calibration_windows
        from agentkv_runtime.export.linear_table import noting_linears
        from agentkv_runtime.export.lower import lower_model
        from agentkv_runtime.export.opening import open_model
        from agentkv_runtime.export.quantization import Recipe
        from agentkv_runtime.export.spill import spilling_to
        from agentkv_runtime.hf.load import read_config
        from agentkv_runtime.hf.positions import long_factors

    tell("loading the model")
    reached(Stage.LOADING)
    text = read_config(source.described).get_text_config()
    recipe_of_blocks = (options.recipe or "measured") if options.quant in OWN_BLOCKS else None
    measured = recipe_of_blocks == "measured"
    windows = calibration_windows(tokenizer, text, options.calibrate) if measured else None
    with named_errors(source.weights, "cannot be loaded"):
        model, expected = open_model(source.weights, source.described, source.adapter, tokens)
    recipe = Recipe(options.quant, options.scales, options.int8, options.embedding)
    with spilling_to(folder), noting_linears() as linears:
        with named_errors(source.weights, "cannot be lowered"):
            lowered = lower_model(model, quant=recipe, **options.lowering(), calibration=windows, progress=tell)
        del model
        tell("writing the folder")
        reached(Stage.WRITING)
        lowered.write(folder / MODEL_NAME)
    made = Made(
        metadata=lowered.metadata,
        vocab_size=lowered.vocab_size,
        max_positions=lowered.max_positions,
        trained_positions=lowered.trained_positions,
        features=lowered.features,
        weights=WeightFacts(recipe.errors, recipe.bits, recipe.counts, recipe.bytes, recipe.kinds),
        recipe=recipe_of_blocks,
        made_with=TOOLS,
        linears=linears,
    )
    del lowered
    if (folder / MODEL_NAME).stat().st_size > _LARGE:
        gc.collect()  # lowering leaves the weights behind in cycles, and opening the program takes as much again
    # Long-rope models run with their long factors where transformers takes the short ones for few tokens.
    return made, None if long_factors(text, options.max_context) else expected


@contextmanager
def named_errors(src: Path, what: str) -> Iterator[None]:
    """Turns exceptions of torch, executorch or the model's code in the block into ExportErrors naming the source.

    ImportErrors come through.
    """
    try:
        yield
    except (ExportError, ImportError, OSError):
        raise
    except ValueError as error:  # what the model or the quantisation does not allow
        raise ExportError(f"{src}: {error}") from error
    except Exception as error:
        raise ExportError(f"{src}: {what}: {type(error).__name__}: {error}") from error
