"""Writes docs/models.md: `make models` exports and runs every architecture, some 20 minutes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import transformers
from agentkv_runtime.export.quiet import quiet_libraries

from tests.architectures.outcome import TOLERANCE, Refused, Runs, outcome, random_model
from tests.architectures.tiny_configs import CAUSAL_TYPES, HISTORY, UNBUILDABLE, VARIANTS, tiny_config

__all__ = ["TABLE", "read_table", "render"]

TABLE = Path(__file__).parents[2] / "docs" / "models.md"


def read_table() -> dict[str, bool]:
    """What the table says of each architecture: does it run?"""
    text = TABLE.read_text(encoding="utf-8")
    runs, _, refused = text.partition("## Refused")
    return {
        **{name: True for name in re.findall(r"^\| `([^`]+)` \|", runs, re.MULTILINE)},
        **{name: False for name in re.findall(r"^\| `([^`]+)` \|", refused, re.MULTILINE)},
    }


def _types(names: list[str]) -> str:
    kinds = [name for name in names if name not in VARIANTS]
    return f"{len(kinds)} architectures and {len(names) - len(kinds)} variants of them"


def render(found: Mapping[str, Runs | Refused]) -> str:
    """The page for outcomes by name."""
    runs = {name: each for name, each in found.items() if isinstance(each, Runs)}
    refused = {name: each for name, each in found.items() if isinstance(each, Refused)}
    lines = [
        "# Models",
        "",
        f"Every causal language model of transformers {transformers.__version__}, as a tiny random model (2 to 4 layers"
        ", one of each kind that the default configuration has): exported for the CPU in fp32, opened, and fed up to"
        f" {HISTORY} tokens in chunks, past every window and original context that its configuration names. The error"
        " is the largest difference from transformers' logits without a cache, relative to the largest logit or 1."
        " Families that are encoders unless their configuration says `is_decoder` are tried with it. Written by `make"
        " models`; `make soak` checks it.",
        "",
        f"## Run: {_types(list(runs))}",
        "",
        "| architecture | largest error | positions tried |",
        "| --- | ---: | ---: |",
        *(f"| `{name}` | {each.error:.0e} | {each.rows} |" for name, each in sorted(runs.items())),
        "",
        f"## Refused: {_types(list(refused))}",
        "",
        "| architecture | reason |",
        "| --- | --- |",
        *(f"| `{name}` | {each.reason.replace('|', '/')} |" for name, each in sorted(refused.items())),
        "",
        "## Not tried",
        "",
        *(f"- {name}: {why}" for name, why in sorted(UNBUILDABLE.items())),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Tries every architecture and writes the table."""
    found: dict[str, Runs | Refused] = {}
    for name in (*CAUSAL_TYPES, *VARIANTS):
        if name in UNBUILDABLE:
            continue
        with tempfile.TemporaryDirectory() as folder, quiet_libraries():
            found[name] = outcome(random_model(tiny_config(name)), Path(folder))
        print(name, found[name], flush=True)
    wrong = [name for name, each in found.items() if isinstance(each, Runs) and not each.error < TOLERANCE]
    if wrong:
        raise SystemExit(f"these compute something else than transformers: {', '.join(wrong)}")
    TABLE.write_text(render(found), encoding="utf-8")


if __name__ == "__main__":
    main()
