"""Models that come with agentkv."""

from __future__ import annotations

from pathlib import Path

from .._errors import ModelError

__all__ = ["nano"]


def nano() -> Path:
    """Path of the packaged nano model: a model folder for `Context.open`, small enough for demos and tests.

    Raises ModelError where the installation does not hold it.
    """
    folder = Path(__file__).parent / "nano"
    if not (folder / "agentkv.json").is_file():
        raise ModelError(
            f"{folder} holds no model: this installation was built without it; install the released wheel, or export "
            "a model with `agentkv export`"
        )
    return folder
