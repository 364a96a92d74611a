"""What is sampled over drafts has the distribution that the model and the sampling parameters say.

The model is a Markov chain over a small vocabulary, so that the probability of every continuation is known exactly.
Drafts are trees that know more than they should: siblings that follow the distribution, the history, each other, or
what was accepted before. 50,000 continuations of each are counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from numpy.typing import NDArray
from scipy import stats

from tests.rows import one_in

VOCAB = 6
DRAWS = 50_000
BRANCHES = 50  # that draw at the same time
LENGTH = 4  # the first token follows the prompt's logits; the joint distribution of the other three is tested
LOGITS = np.random.default_rng(3).normal(scale=1.5, size=(VOCAB, VOCAB)).astype(np.float32)
PROMPT = [0, 3, 1, 4, 2, 5, 1]


@dataclass(frozen=True)
class Rule:
    """Sampling parameters."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    def probabilities(self, row: NDArray[np.float32]) -> NDArray[np.float64]:
        """Of the next token: temperature, then the k best, then the fewest whose sum reaches top_p of what is left."""
        p = np.exp((row.astype(np.float64) - row.max()) / self.temperature)
        order = np.argsort(-p)
        if self.top_k:
            p[order[self.top_k :]] = 0
        p /= p.sum()
        needed = int(np.searchsorted(np.cumsum(p[order]), self.top_p)) + 1
        p[order[needed:]] = 0
        return p / p.sum()


@dataclass
class Draft:
    """As the native drafter reads it."""

    tokens: list[int]
    parents: list[int]
    confidence: list[float] | None = None


class Tree:
    """A strategy: `children(history)` says which tokens may follow a history, in three levels."""

    def __init__(self, children: Callable[[list[int]], Sequence[int]]) -> None:
        self.children = children

    def propose(self, branch: int, tokens: NDArray[np.int32], limit: int) -> Draft:
        draft = Draft([], [])
        level = [(-1, tokens.tolist())]
        for _ in range(3):
            below = []
            for parent, history in level:
                for token in dict.fromkeys(self.children(history)):
                    below.append((len(draft.tokens), [*history, token]))
                    draft.tokens.append(token)
                    draft.parents.append(parent)
            level = below
        return draft


def likely(rng: random.Random) -> Callable[[list[int]], Sequence[int]]:
    """The likeliest tokens, or all but those."""

    def children(history: list[int]) -> Sequence[int]:
        order = np.argsort(-LOGITS[history[-1]]).tolist()
        return order[:2] if rng.random() < 0.7 else order[2:4]

    return children


def drawn(rng: random.Random) -> Callable[[list[int]], Sequence[int]]:
    """Drawn from the model's own distribution: what rejection sampling is made for."""

    def children(history: list[int]) -> Sequence[int]:
        weights = np.exp(LOGITS[history[-1]]).tolist()
        return rng.choices(range(VOCAB), weights, k=2)

    return children


def historical(rng: random.Random) -> Callable[[list[int]], Sequence[int]]:
    """What came before in the history, and what follows from how often its last token was accepted."""

    def children(history: list[int]) -> Sequence[int]:
        last = history[-1]
        return [history[-2], history[rng.randrange(len(history))], (last + history.count(last)) % VOCAB]

    return children


def siblings(rng: random.Random) -> Callable[[list[int]], Sequence[int]]:
    """Each sibling decides the next; one that was accepted decides whether there is a draft at all."""

    def children(history: list[int]) -> Sequence[int]:
        first = rng.randrange(VOCAB)
        if history[-1] == 2:
            return []
        return [first, (first + 1 + history[-1] % 2) % VOCAB, (first + 3) % VOCAB]

    return children


def count(rule: Rule, drafter: _core.Drafter, seed: int) -> tuple[NDArray[np.int64], _core.Stats]:
    """How often each continuation was drawn: [VOCAB] * LENGTH; and the engine's statistics."""
    cells = _core.Cells(4096)

    def forward(tokens: Any, positions: Any, wanted: Any) -> NDArray[np.float32]:
        cells.plan(positions)
        return LOGITS[tokens[wanted]]

    engine = _core.Engine(
        _core.PythonRunner(forward, vocab_size=VOCAB, max_tokens=2048, max_logits=2048),
        cells,
        token_bytes=[b"x"] * VOCAB,
        eos_ids=[],
        special_ids=[],
        max_batch_tokens=2048,
    )
    trunk, _ = engine.create()
    engine.extend(trunk, PROMPT)
    prefilled = engine.step().finished
    assert [finished.error for finished in prefilled] == [None]
    counts = np.zeros((VOCAB,) * LENGTH, dtype=np.int64)
    for _ in range(DRAWS // BRANCHES):
        branches = [engine.fork(trunk) for _ in range(BRANCHES)]
        for branch in branches:
            sampling = _core.Sampling(temperature=rule.temperature, top_k=rule.top_k, top_p=rule.top_p)
            options = _core.GenerateOptions(max_tokens=LENGTH, sampling=sampling, seed=seed, drafter=drafter)
            engine.generate(branch, options)
        left = len(branches)
        while left:
            for finished in engine.step().finished:
                assert finished.error is None, finished.error
                counts[tuple(finished.tokens)] += 1
                left -= 1
        for branch in branches:
            engine.close(branch)
    return counts, engine.stats()


def exact(rule: Rule) -> NDArray[np.float64]:
    """The probability of each continuation."""
    after = np.stack([rule.probabilities(row) for row in LOGITS])
    p = after[PROMPT[-1]]
    for _ in range(LENGTH - 1):
        p = p[..., None] * after
    return p


def p_value(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """Pearson's chi-square; continuations that are expected less than 5 times are one class."""
    expected = probabilities.ravel() * counts.sum()
    observed = counts.ravel()
    assert observed[expected == 0].sum() == 0, "drew what the parameters rule out"
    rare = expected < 5
    pairs = [(observed[~rare], expected[~rare])]
    if expected[rare].sum() >= 5:
        pairs.append((observed[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    statistic = sum(float(((o - e) ** 2 / e).sum()) for o, e in pairs)
    classes = sum(len(o) for o, _ in pairs)
    return float(stats.chi2.sf(statistic, classes - 1))


RULES = {
    "T 1": Rule(1.0),
    "T 0.6": Rule(0.6),
    "T 1.8, top 4": Rule(1.8, top_k=4),
    "T 1, top 3": Rule(1.0, top_k=3),
    "T 1, p 0.8": Rule(1.0, top_p=0.8),
    "T 1.4, top 5, p 0.9": Rule(1.4, top_k=5, top_p=0.9),
}
TREES = [likely, drawn, historical, siblings]
CASES = [
    pytest.param(rule, TREES[i % len(TREES)], id=f"{name}, {TREES[i % len(TREES)].__name__}")
    for i, (name, rule) in enumerate(RULES.items())
]


@pytest.mark.parametrize(("rule", "tree"), one_in(2, CASES))
def test_continuations_have_their_exact_distribution(rule: Rule, tree: Any) -> None:
    drafter = _core.PythonDrafter(Tree(tree(random.Random(1))), VOCAB)
    drafter.adaptive = False
    counts, done = count(rule, drafter, seed=2)
    assert counts.sum() == DRAWS
    assert done.accepted > DRAWS / 2
    assert done.drafted > done.accepted
    probabilities = exact(rule)
    assert p_value(counts, probabilities) > 0.01
    assert p_value(counts.sum(axis=0), probabilities.sum(axis=0)) > 0.01  # of the three tokens that had drafts


OF_TEXT = {
    "lookup": partial(_core.PromptLookup, min_ngram=1, max_ngram=4, width=4, max_nodes=12),
    "suffix": partial(_core.SuffixDrafter, max_nodes=12),
}


@pytest.mark.parametrize("rule", [RULES["T 1"], RULES["T 1.4, top 5, p 0.9"]], ids=["T 1", "T 1.4, top 5, p 0.9"])
@pytest.mark.parametrize("make", OF_TEXT.values(), ids=list(OF_TEXT))
def test_continuations_of_a_native_drafter(make: Callable[[], _core.Drafter], rule: Rule) -> None:
    drafter = make()
    drafter.adaptive = False
    counts, done = count(rule, drafter, seed=3)
    assert done.accepted > DRAWS / 2
    assert p_value(counts, exact(rule)) > 0.01


def test_the_test_finds_a_bias() -> None:
    rule = RULES["T 1"]
    probabilities = exact(rule)
    rng = np.random.default_rng(0)
    biased = probabilities**0.97
    draws = rng.multinomial(DRAWS, (biased / biased.sum()).ravel()).reshape(probabilities.shape)
    assert p_value(draws, probabilities) < 1e-6
    fair = rng.multinomial(DRAWS, probabilities.ravel()).reshape(probabilities.shape)
    assert p_value(fair, probabilities) > 0.01
