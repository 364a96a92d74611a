"""Tokens per second over depth and over branches, each beside what reading the bytes allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .rows import Decode, Row
from .shapes import Shape

Rates = Mapping[str, Mapping[Row, float]]  # by peer


def plot_depths(rates: Rates, depths: list[int], shape: Shape, bandwidth: float, path: Path) -> None:
    """One branch that decodes, over the tokens before it."""
    axes = _axes("tokens in the cache", "One branch")
    _lines(axes, rates, {depth: Decode(depth) for depth in depths}, lambda depth: shape.limit(depth, 1, bandwidth))
    axes.set_xlim(left=0)
    _write(axes, path)


def plot_branches(rates: Rates, counts: list[int], trunk: int, shape: Shape, bandwidth: float, path: Path) -> None:
    """Branches that decode together on one trunk, over their number."""
    axes = _axes("branches", f"Branches on one {trunk:,}-token trunk, together")
    rows = {count: Decode(trunk, count) for count in counts}
    _lines(axes, rates, rows, lambda count: shape.limit(trunk, count, bandwidth))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    _write(axes, path)


def _axes(along: str, title: str) -> plt.Axes:
    _, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    axes.set(xlabel=along, ylabel="tokens per second", title=title)
    axes.grid(alpha=0.3, which="both")
    return axes


def _lines(axes: plt.Axes, rates: Rates, rows: Mapping[int, Row], limit: Callable[[int], float]) -> None:
    axes.plot(
        list(rows), [limit(at) for at in rows], "k--", linewidth=1, label="limit by bytes (4-bit weights, fp16 cache)"
    )
    for name, measured in rates.items():
        axes.plot(list(rows), [measured[row] for row in rows.values()], "o-", label=name)


def _write(axes: plt.Axes, path: Path) -> None:
    axes.set_ylim(bottom=0 if axes.get_yscale() == "linear" else None)
    axes.legend(fontsize="small")
    axes.figure.savefig(path, dpi=150)
    plt.close(axes.figure)
