"""Options that several commands have alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

if TYPE_CHECKING:
    from .._model.drafters import Speculative

Drafts: TypeAlias = Literal["suffix", "prompt", "eagle", "mtp", "suffix+eagle", "suffix+mtp"]
"""Strategies of speculation that need no more than a name."""

CallFormatOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="How the model writes calls, where its folder does not say it.")
]
SteerCallsOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--steer-calls",
        help="Hold calls to a spelling that reads from the first message on, not after two others were rescued.",
    ),
]
QuantOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Weights of a model that is exported when it is opened: q4 to q8, none, file, as of export.",
    ),
]
PrefixCacheOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Keep what prompts begin with here, for later runs to read."),
]
PrefixCacheBytesOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Most bytes of that folder; without it 4294967296.")
]
ThreadsOption: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Of the model.")]


def prefix_cache_options(folder: Path | None, most_bytes: int | None) -> dict[str, Any]:
    """Options of `Context.open`; no size leaves its own."""
    given = {"prefix_cache": folder, "prefix_cache_bytes": most_bytes}
    return {name: value for name, value in given.items() if value is not None}


def strategy_called(name: Drafts, corpus: Path | None = None) -> Speculative:
    """The strategy of this name. `corpus` is the folder of those that keep text."""
    from .. import spec

    suffix = spec.Suffix(corpus=corpus)
    strategies: dict[Drafts, Speculative] = {
        "suffix": suffix,
        "prompt": spec.PromptLookup(),
        "eagle": spec.Eagle(),
        "mtp": spec.MTP(),
        "suffix+eagle": spec.Mixed(suffix, spec.Eagle()),
        "suffix+mtp": spec.Mixed(suffix, spec.MTP()),
    }
    return strategies[name]


_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>([KMGT]i?)?B)?", re.IGNORECASE)
_UNITS = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}


def byte_count(text: str) -> int:
    """A number of bytes, as 6GiB, 500MB or 1048576. Raises typer.BadParameter."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no size; give bytes, or as 6GiB or 500MB")
    return int(float(found["number"]) * _UNITS[(found["unit"] or "b").lower()])
