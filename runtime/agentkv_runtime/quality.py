"""Quality of a model's predictions of a text: its perplexity, and its divergence from the model that it was made from.

    session = make_decode_session(folder, capacity=WINDOW)
    windows = text_windows(folder.tokenizer, default_text(), most=10)
    measure_quality(SessionModel(session), windows).perplexity

The text is cut into windows of 512 tokens, each read from an empty cache; what is predicted of a window's second half
counts. `llama-perplexity -c 512` of llama.cpp measures the same, so the figures stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import QualityError
from agentkv_runtime.folder.model_folder import ModelFolder
from agentkv_runtime.folder.small_files import read_text
from agentkv_runtime.sessions import DecodeSession, Logits
from agentkv_runtime.text.tokenizer import Tokenizer

__all__ = [
    "WINDOW",
    "Divergence",
    "Quality",
    "ScoredModel",
    "SessionModel",
    "check_positions",
    "default_text",
    "measure_quality",
    "read_text_file",
    "text_windows",
]

WINDOW = 512
"""Tokens that are read from an empty cache; the second half of them is scored."""
_HALF = WINDOW // 2
_BLOCK = 64  # rows whose logits are in memory at once
_CHARACTERS = 8  # of a token, so many at most in most texts: a long text is not encoded in vain

Doubles = npt.NDArray[np.float64]


class ScoredModel(Protocol):
    """A model whose predictions can be scored: an exported program's session, or the source model in torch."""

    @property
    def vocab_size(self) -> int:
        """Logits per row."""

    @property
    def block(self) -> int:
        """Largest number of rows of logits in one array."""

    def logits(self, tokens: Sequence[int], first: int, block: int) -> Iterator[Logits]:
        """Yields next-token logits after tokens[first:], read from an empty cache, float32 `[<= block, vocab]` each."""


@dataclass(frozen=True)
class SessionModel:
    """Scores an exported model's session, whose capacity is at least `WINDOW`; clears it before every window."""

    session: DecodeSession

    @property
    def vocab_size(self) -> int:
        """Logits per row."""
        return self.session.vocab_size

    @property
    def block(self) -> int:
        """Rows of one forward."""
        return min(_BLOCK, self.session.max_tokens, self.session.max_logits)

    def logits(self, tokens: Sequence[int], first: int, block: int) -> Iterator[Logits]:
        """See `ScoredModel`. Raises what `DecodeSession.forward` does."""
        self.session.clear()
        for begin in range(0, first, self.session.max_tokens):
            self.session.forward(tokens[begin : min(begin + self.session.max_tokens, first)], rows=[])
        for begin in range(first, len(tokens), block):
            yield self.session.forward(tokens[begin : begin + block])


@dataclass(frozen=True)
class Divergence:
    """Differences between the predictions of a model and those of its source."""

    mean: float
    """Kullback-Leibler divergence of the source's distribution from the model's, in nats per token."""
    percentile_99: float
    """99th percentile of the divergence of single tokens, in nats."""
    same_best: float
    """Share of tokens for which both rank the same token first, 0 to 1."""


@dataclass(frozen=True)
class Quality:
    """Quality of a model's predictions on a text."""

    perplexity: float
    """exp of the mean negative log-likelihood of the tokens that count."""
    standard_error: float
    """Standard error of the perplexity, from the variance of the tokens' log-likelihoods."""
    windows: int
    tokens: int
    """Number of scored predictions, all windows."""
    divergence: Divergence | None
    """Divergence from the source; None if none was given."""


def check_positions(folder: ModelFolder) -> None:
    """Raises QualityError for a model that has fewer positions than a window."""
    known = folder.manifest.max_positions
    if known is not None and known < WINDOW:
        raise QualityError(f"{folder.path}: knows {known} positions, and quality is measured in windows of {WINDOW}")


def default_text() -> str:
    """Python's own help topics, in English: some 700,000 characters that every installation has."""
    from pydoc_data import topics

    return "\n\n".join(text for _, text in sorted(topics.topics.items()))


def read_text_file(path: Path) -> str:
    """Reads a UTF-8 text to measure on. Raises QualityError for a file that is unreadable, no UTF-8 or above 16 MiB."""
    return read_text(path, QualityError)


def text_windows(tokenizer: Tokenizer, text: str, *, most: int) -> list[list[int]]:
    """The first windows of a text, `most` at most: `WINDOW` tokens each, in which control tokens are plain text.

    Where the tokenizer puts a BOS in front of a text, one stands in the place of each window's first token. Raises
    QualityError for a text that fills no window.
    """
    wanted = most * WINDOW
    length = wanted * _CHARACTERS
    ids = tokenizer.encode(text[:length], bos=True, parse_special=False)
    while len(ids) <= wanted and length < len(text):
        length *= 2
        ids = tokenizer.encode(text[:length], bos=True, parse_special=False)
    count = min(most, len(ids) // WINDOW)
    if not count:
        raise QualityError(f"the text has {len(ids)} tokens, and one window takes {WINDOW}: give a longer text")
    bos = tokenizer.bos_ids
    return [[*bos, *ids[at * WINDOW + len(bos) : (at + 1) * WINDOW]] for at in range(count)]


def measure_quality(
    model: ScoredModel,
    windows: Sequence[Sequence[int]],
    *,
    source: ScoredModel | None = None,
    done: Callable[[float], None] = lambda _: None,
) -> Quality:
    """Reads windows of `WINDOW` tokens and scores the second half of each: 255 predictions.

    With a `source` it also measures the divergence from that model's predictions. `done` gets the finished share, 0 to
    1, and may raise to stop. Raises QualityError for a source of another vocabulary, for tokens that the model does
    not have, and for logits that are not finite.
    """
    _check(model, windows, source)
    losses: list[Doubles] = []
    divergences: list[Doubles] = []
    same = 0
    for number, tokens in enumerate(windows):
        fed = tokens[:-1]
        mine = model.logits(fed, _HALF, model.block)
        theirs = source.logits(fed, _HALF, model.block) if source else None
        at = _HALF + 1
        for rows in mine:
            found = _log_softmax(rows)
            losses.append(-found[np.arange(len(found)), tokens[at : at + len(found)]])
            if theirs is not None:
                true = _log_softmax(next(theirs))
                divergences.append((np.exp(true) * (true - found)).sum(-1))
                same += int((true.argmax(-1) == found.argmax(-1)).sum())
            at += len(found)
            done((number + at / WINDOW) / len(windows))
    loss = np.concatenate(losses)
    perplexity = math.exp(loss.mean())
    return Quality(
        perplexity=perplexity,
        standard_error=perplexity * float(loss.std()) / math.sqrt(len(loss)),
        windows=len(windows),
        tokens=len(loss),
        divergence=_divergence(np.concatenate(divergences), same) if divergences else None,
    )


def _check(model: ScoredModel, windows: Sequence[Sequence[int]], source: ScoredModel | None) -> None:
    if source is not None and source.vocab_size != model.vocab_size:
        raise QualityError(
            f"the source has {source.vocab_size} logits and the model {model.vocab_size}: give the source that this "
            "model was exported from"
        )
    largest = max(map(max, windows))
    if largest >= model.vocab_size:
        raise QualityError(
            f"the text has token {largest}, but the model has {model.vocab_size} logits: give another text"
        )


def _divergence(each: Doubles, same: int) -> Divergence:
    # Sums in another order make tiny negative ones of equal distributions.
    return Divergence(max(0.0, float(each.mean())), max(0.0, float(np.quantile(each, 0.99))), same / len(each))


def _log_softmax(rows: Logits) -> Doubles:
    if not np.isfinite(rows).all():
        raise QualityError("the model's logits are not finite: export it again with another quantisation or dtype")
    wide = rows.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide
