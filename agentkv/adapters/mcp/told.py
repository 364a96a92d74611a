"""What tools of branches answer; clients are told of it as JSON schemas."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from ..._generation import FinishReason


class Held(TypedDict):
    """A branch, and how much it holds."""

    branch: Annotated[str, Field(description="Name of the branch.")]
    tokens: Annotated[int, Field(description="How many tokens it holds now; rollback takes such a number.")]


class Written(Held):
    """What the model wrote."""

    text: str
    finish_reason: FinishReason
    generated: Annotated[int, Field(description="How many tokens it wrote.")]


class Chosen(TypedDict):
    """The likeliest of some choices."""

    index: Annotated[int, Field(description="Its place among the choices, from 0 on.")]
    text: str
