"""Perplexity and divergence, computed once more by plain numpy over a session's logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime.errors import QualityError
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.quality import (
    WINDOW,
    SessionModel,
    check_positions,
    default_text,
    measure_quality,
    read_text_file,
    text_windows,
)
from agentkv_runtime.sessions import Logits, make_decode_session
from agentkv_runtime.sources.reference import SourceModel
from agentkv_runtime.text.tokenizer import Tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from agentkv.models import nano
from tests.conftest import FolderFactory

HALF = WINDOW // 2


@pytest.fixture(scope="module")
def windows() -> list[list[int]]:
    return text_windows(read_model_folder(nano()).tokenizer, default_text(), most=2)


def nanos(**changes: Any) -> SessionModel:
    return SessionModel(make_decode_session(nano(), capacity=WINDOW, **changes))


def log_probabilities(tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of nano, a token at a time: float64 `[T, vocab]`."""
    session = make_decode_session(nano(), capacity=WINDOW)
    rows = np.concatenate([session.forward([token]) for token in tokens]).astype(np.float64)
    return rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)


def test_perplexity_is_that_of_the_second_halves(windows: list[list[int]]) -> None:
    losses = []
    for tokens in windows:
        found = log_probabilities(tokens)
        losses += [-found[at - 1, tokens[at]] for at in range(HALF + 1, WINDOW)]
    shares: list[float] = []
    quality = measure_quality(nanos(), windows, done=shares.append)
    assert quality.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-9)
    assert quality.standard_error == pytest.approx(quality.perplexity * np.std(losses) / np.sqrt(len(losses)))
    assert (quality.windows, quality.tokens, quality.divergence) == (2, 2 * (HALF - 1), None)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_model_does_not_diverge_from_itself(windows: list[list[int]]) -> None:
    lost = measure_quality(nanos(), windows[:1], source=nanos()).divergence
    assert lost is not None
    assert (lost.mean, lost.percentile_99, lost.same_best) == (0.0, 0.0, 1.0)


SHIFTS = np.random.default_rng(0).normal(0, 2, 1024).astype(np.float32)


class Shifted(SessionModel):
    """Nano with other logits."""

    def logits(self, tokens: Sequence[int], first: int, block: int) -> Iterator[Logits]:
        for rows in super().logits(tokens, first, block):
            yield rows + SHIFTS


def test_divergence_is_from_the_source_to_the_model(windows: list[list[int]]) -> None:
    true = log_probabilities(windows[0][:-1])[HALF:]
    shifted = true + SHIFTS
    shifted -= np.logaddexp.reduce(shifted, axis=-1, keepdims=True)
    each = (np.exp(true) * (true - shifted)).sum(-1)
    lost = measure_quality(Shifted(nanos().session), windows[:1], source=nanos()).divergence
    assert lost is not None
    assert lost.mean == pytest.approx(each.mean(), rel=1e-5)
    assert lost.percentile_99 == pytest.approx(np.quantile(each, 0.99), rel=1e-5)
    assert lost.same_best == (true.argmax(-1) == shifted.argmax(-1)).mean() < 1


def test_a_float32_export_says_what_its_source_does(
    tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory
) -> None:
    folder = read_model_folder(tiny_exported_folder("llama"))
    session = make_decode_session(folder, capacity=WINDOW, kv_dtype="fp32")
    tokens = text_windows(folder.tokenizer, default_text(), most=1)
    quality = measure_quality(SessionModel(session), tokens, source=SourceModel(tiny_hf_folder("llama")))
    assert quality.divergence is not None
    assert quality.divergence.mean < 1e-8
    assert quality.divergence.same_best > 0.99


def words(bos: bool) -> Tokenizer:
    """A token for each word: "a" is 1, "b" 2; 0 is a BOS."""
    backend = Backend(models.WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="b"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        backend.add_special_tokens(["<s>"])
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("bos", "n_words", "most", "starts"),
    [
        (False, 2 * WINDOW, 3, [[1, 2], [1, 2]]),
        (False, 2 * WINDOW - 1, 3, [[1, 2]]),
        (False, 9 * WINDOW, 1, [[1, 2]]),
        (True, 2 * WINDOW, 2, [[0, 1], [0, 1]]),  # the second one's first token, "b", gave way
        (True, WINDOW - 1, 2, [[0, 1]]),
    ],
)
def test_windows(bos: bool, n_words: int, most: int, starts: list[list[int]]) -> None:
    found = text_windows(words(bos), "a b " * (n_words // 2) + "a" * (n_words % 2), most=most)
    assert [window[:2] for window in found] == starts
    assert {len(window) for window in found} == {WINDOW}


def test_a_text_of_long_tokens_is_read_as_far_as_it_must() -> None:
    assert len(text_windows(words(False), f"a {' ' * 50}" * 3 * WINDOW, most=2)) == 2


def test_what_cannot_be_measured_is_refused(tmp_path: Path, windows: list[list[int]]) -> None:
    with pytest.raises(QualityError, match="the text has 4 tokens, and one window takes 512: give a longer text"):
        text_windows(words(False), "a b a b", most=1)
    with pytest.raises(QualityError, match="No such file"):
        read_text_file(tmp_path / "nowhere")
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    with pytest.raises(QualityError, match="not UTF-8"):
        read_text_file(tmp_path / "latin")
    with pytest.raises(QualityError, match="the text has token 9999, but the model has 1024 logits"):
        measure_quality(nanos(), [[9999] * WINDOW])
    folder = read_model_folder(nano())
    small = replace(folder, manifest=folder.manifest.model_copy(update={"max_positions": 100}))
    with pytest.raises(QualityError, match="knows 100 positions"):
        check_positions(small)


def test_a_source_of_another_vocabulary_is_refused(
    windows: list[list[int]], tiny_exported_folder: FolderFactory
) -> None:
    other = SessionModel(make_decode_session(tiny_exported_folder("llama"), capacity=WINDOW))
    with pytest.raises(QualityError, match="the source has 384 logits and the model 1024"):
        measure_quality(nanos(), windows, source=other)


class Broken(SessionModel):
    """Nano with logits that are not finite."""

    def logits(self, tokens: Sequence[int], first: int, block: int) -> Iterator[Logits]:
        for rows in super().logits(tokens, first, block):
            yield rows * np.inf


def test_logits_that_are_not_finite_are_named(windows: list[list[int]]) -> None:
    with pytest.raises(QualityError, match="not finite"), np.errstate(invalid="ignore"):
        measure_quality(Broken(nanos().session), windows)
