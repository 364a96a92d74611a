"""Models packaged with agentkv."""

from __future__ import annotations

from pathlib import Path

from .._types.checks import checked_bool
from .._types.errors import ModelError

__all__ = ["nano"]


def nano(draft: bool = False) -> Path:
    """Path of the packaged nano model: a model folder for `Context.open`, small enough for demos and tests.

    With `draft` it must also contain the draft head that `kv.spec.Eagle()` runs. Raises ModelError if the installation
    lacks either.
    """
    draft = checked_bool(draft, "draft")
    folder = Path(__file__).parent / "nano"
    if not (folder / "agentkv.json").is_file():
        raise ModelError(
            f"{folder} holds no model: this installation was built without it; install the released wheel, or export "
            "a model with `agentkv export`"
        )
    if draft and not ((folder / "draft.json").is_file() and (folder / "draft.pte").is_file()):
        raise ModelError(
            f"{folder} holds no draft head: this installation was built without it; install the released wheel, or "
            "export a head with `agentkv export-draft`"
        )
    return folder
