"""Figure of the results. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .._types.errors import InvalidInput, ModelError
from .results import PLAIN, BenchResult

_INK, _MUTED = "#1f2933", "#9aa5b1"
_BAR, _PLAIN_BAR = "#2f6f9f", "#c3ccd5"


def check_matplotlib() -> None:
    """Raises ModelError, with the command that installs it, if matplotlib is missing. Called before measuring."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"--plot draws with matplotlib, and {error.name!r} is not installed: pip install 'agentkv-sdk[plot]'"
        ) from error


def draw(results: Sequence[BenchResult], path: Path, title: str) -> None:
    """Writes two rows of bars, one bar per strategy of each kind of work: tokens per forward, and speed beside plain
    decoding's.

    Raises InvalidInput for an unknown image suffix, and OSError if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.1 + 0.42 * len(results)), layout="constrained")
    FigureCanvasAgg(figure)
    kinds = len({result.work for result in results})
    names = [f"{result.work}, {result.name}" if kinds > 1 else result.name for result in results]
    colours = [_PLAIN_BAR if result.name == PLAIN else _BAR for result in results]
    panels = {
        "tokens per target forward": [result.tokens_per_forward for result in results],
        "tokens per second, plain = 1": [result.speedup for result in results],
    }
    for axes, (label, values) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        bars = axes.barh(names, values, height=0.62, color=colours)
        axes.bar_label(bars, fmt="%.2f", padding=4, color=_INK, fontsize=10)
        axes.axvline(1, color=_MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=0)
        axes.set_xlim(0, 1.18 * max(values))
        axes.set_title(label, fontsize=10, color=_INK, loc="left")
        axes.tick_params(length=0, labelsize=10, colors=_INK)
        axes.tick_params(axis="x", labelbottom=False)
        axes.spines[:].set_visible(False)
    axes.invert_yaxis()  # shared: the first strategy on top
    figure.suptitle(title, fontsize=11, color=_INK, x=0.01, ha="left")
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # a kind of file that matplotlib does not write
        raise InvalidInput(f"--plot {path}: {error}") from error
