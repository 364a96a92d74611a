"""Checks of the options of quantisation, before an export's long steps. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.manifest import Quantization, Scales, WeightRecipe
from agentkv_runtime.folder.small_files import MOST_BYTES
from agentkv_runtime.notes import note
from agentkv_runtime.sources.source import is_gguf

__all__ = ["OWN_BLOCKS", "check_quantization", "check_recipe"]

OWN_BLOCKS = ("q4", "q5", "q6", "q8")
"""Quantisations that make blocks of any weights."""


def check_quantization(
    quant: Quantization,
    src: Path,
    adapter: str | Path | None,
    int8: tuple[str, ...],
    embedding: int,
    scales: Scales,
    calibrate: str | Path | None,
    recipe: WeightRecipe | None,
) -> None:
    """Raises ExportError for a quantisation that the source lacks, or for options that do not fit the quantisation.

    Notes that a quantisation is deprecated.
    """
    if quant == "file" and not is_gguf(src):
        raise ExportError(f"{src}: quant is 'file', but only a GGUF file has blocks of its own. Choose bits")
    if quant == "file" and adapter is not None:
        raise ExportError(
            f"{src}: quant is 'file', but with the adapter {adapter} merged into them its weights are others. Choose "
            "bits, or leave the adapter out"
        )
    if calibrate is not None and quant not in OWN_BLOCKS:
        raise ExportError(
            f"only {', '.join(OWN_BLOCKS)} read a calibration text ({calibrate}), and this is {quant}. Leave it out or"
            " choose one of those"
        )
    check_recipe(recipe, quant)
    if recipe == "fixed" and calibrate is not None:
        raise ExportError(f"a fixed recipe reads no calibration text ({calibrate}): leave one of them out")
    if scales != "search" and quant != "8da4w":
        raise ExportError(f"only 8da4w has scales to choose ({scales}), and this is {quant}. Leave them out")
    if calibrate is not None and not os.path.isfile(calibrate):  # Path's raises for names that no system takes
        raise ExportError(f"{calibrate}: no file of text. Give one to calibrate on, or leave it out")
    if calibrate is not None and os.path.getsize(calibrate) > MOST_BYTES:
        raise ExportError(f"{calibrate}: longer than {MOST_BYTES} bytes. Give a part of the text: a few pages are read")
    if quant == "8da4w":
        note("8da4w is deprecated: q4 takes fewer bytes and loses less of the model.")
    if int8 and quant != "8da4w":
        raise ExportError(f"only 8da4w keeps some layers at 8 bits (int8={list(int8)}), and this is {quant}")
    if embedding not in (4, 8, 16):
        raise ExportError(f"the token embedding has 16, 8 or 4 bits, not {embedding}")
    if embedding != 16 and quant not in ("8da8w", "8da4w"):
        raise ExportError(f"only 8da8w and 8da4w keep the token embedding at {embedding} bits, and this is {quant}")


def check_recipe(recipe: WeightRecipe | None, quant: Quantization) -> None:
    """Raises ExportError for a recipe of weights that have none."""
    if recipe is not None and quant not in OWN_BLOCKS:
        raise ExportError(
            f"only {', '.join(OWN_BLOCKS)} have a recipe ({recipe}), and this is {quant}. Leave it out or choose one"
        )
