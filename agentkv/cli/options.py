"""Options that several commands have alike."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

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
ThreadsOption: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Of the model.")]
