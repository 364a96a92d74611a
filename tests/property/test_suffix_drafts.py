"""Suffix drafts in a running engine against a naive search: what rides behind a branch's last token is what followed
the longest text that any branch had, whatever forks, rollbacks, adoptions and closes came between.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from numpy.typing import NDArray

VOCAB = 60
MOST_BRANCHES = 8
LENGTHS = (16, 8, 4, 2, 1)  # of the texts that the drafter finds
COUNTED = 32  # places where such a text occurred that it looks at
MOST_NODES = 64


class Texts:
    """Every token that was run, with all that stood before it."""

    def __init__(self) -> None:
        self.entries: list[tuple[list[int], int]] = []

    def after(self, history: list[int]) -> Counter[int]:
        """What followed the longest end of `history`, of those lengths, that there was before."""
        for length in LENGTHS:
            end = history[-length:]
            found = Counter(token for before, token in self.entries if before[-length:] == end)
            if found and len(end) == length:
                return found
        return Counter()


class Session:
    """An engine whose model says at each position what `says` tells, and looks at the rows that come."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cells = _core.Cells(8192)
        runner = _core.PythonRunner(self.forward, vocab_size=VOCAB, max_tokens=512, max_logits=512)
        self.engine = _core.Engine(
            runner, self.cells, token_bytes=[b"x"] * VOCAB, eos_ids=[], special_ids=[], max_batch_tokens=512
        )
        self.drafter = _core.SuffixDrafter(max_nodes=MOST_NODES)
        self.drafter.adaptive = False
        self.engine.attach(self.drafter)
        self.texts = Texts()
        self.run: dict[int, list[int]] = {}  # what was run of each branch
        self.base: list[int] = []
        self.says: list[int] = []
        self.branch = self.left = -1
        self.compared = self.wide = 0

    def tell(self, branch: int, tokens: list[int]) -> None:
        """So much of a branch was run."""
        told = self.run[branch]
        self.texts.entries += [(tokens[:at], tokens[at]) for at in range(len(told), len(tokens))]
        self.run[branch] = list(tokens)

    def forward(self, tokens: Any, positions: Any, wanted: Any) -> NDArray[np.float32]:
        self.cells.plan(positions)
        if self.left >= 0:
            self.look(tokens.tolist(), positions.tolist())
        logits = np.zeros((len(wanted), VOCAB), np.float32)
        logits[np.arange(len(wanted)), [self.says[at + 1] for at in positions[wanted].tolist()]] = 1
        return logits

    def look(self, tokens: list[int], positions: list[int]) -> None:
        """The rows of a generating branch: its last token, and a draft where more than one token is still wanted."""
        at = positions[0]
        if at == len(self.base):  # the first one was drawn from an earlier forward
            self.says[at] = tokens[0]
        history = self.base + self.says[len(self.base) : at + 1]
        assert tokens[0] == history[at]
        self.tell(self.branch, history[:at])
        found = self.texts.after(history[: at + 1])
        children = [token for token, position in zip(tokens, positions, strict=True) if position == at + 1]
        if len(self.base) + self.left - at - 1 < 2:
            return
        assert set(children) <= found.keys()
        assert bool(children) == bool(found)
        if len(tokens) - 1 < MOST_NODES and found.total() <= COUNTED:
            assert set(children) == found.keys()
        self.compared += 1
        self.wide += len(children) > 1

    def text(self) -> list[int]:
        """Something new, or what was there before."""
        n = self.rng.randint(1, 12)
        if self.texts.entries and self.rng.random() < 0.6:
            before, _ = self.rng.choice(self.texts.entries)
            return before[-n:] or [0]
        return [self.rng.randrange(VOCAB) for _ in range(n)]

    def finish(self) -> None:
        while not (report := self.engine.step()).finished:
            pass
        assert [finished.error for finished in report.finished] == [None]

    def begin(self) -> None:
        branch, _ = self.engine.create()
        self.run[branch] = []
        self.extend(branch)

    def extend(self, branch: int) -> None:
        self.left, self.says = -1, [self.rng.randrange(VOCAB)] * 5000
        self.engine.extend(branch, self.text())
        self.finish()
        self.tell(branch, self.engine.tokens(branch).tolist()[: self.engine.n_cached(branch)])

    def generate(self, branch: int) -> None:
        self.branch, self.left = branch, self.rng.randint(2, 10)
        self.base = self.engine.tokens(branch).tolist()
        ahead = [token for _ in range(4) for token in self.text()]
        self.says = (self.base + ahead + [0] * 40)[: len(self.base) + 40]
        self.engine.generate(branch, _core.GenerateOptions(max_tokens=self.left, drafter=self.drafter))
        self.finish()
        tokens = self.engine.tokens(branch).tolist()
        assert tokens == self.says[: len(tokens)]
        self.tell(branch, tokens[: self.engine.n_cached(branch)])

    def fork(self, branch: int) -> None:
        if len(self.run) < MOST_BRANCHES:
            self.run[self.engine.fork(branch)] = list(self.run[branch])

    def rollback(self, branch: int) -> None:
        self.engine.rollback(branch, self.rng.randint(1, self.engine.length(branch)))
        self.run[branch] = self.run[branch][: self.engine.n_cached(branch)]

    def adopt(self, branch: int) -> None:
        other = self.rng.choice(list(self.run))
        if other != branch:
            self.engine.adopt(branch, other)
            self.run[branch] = list(self.run[other])

    def close(self, branch: int) -> None:
        if len(self.run) > 2:
            self.engine.close(branch)
            del self.run[branch]


VERBS = ["extend"] * 3 + ["generate"] * 6 + ["fork", "rollback", "rollback", "adopt", "close"]


def play(seed: int, verbs: int) -> Session:
    session = Session(seed)
    session.begin()
    session.begin()
    for _ in range(verbs):
        branch = session.rng.choice(list(session.run))
        getattr(session, session.rng.choice(VERBS))(branch)
    return session


@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_what_a_naive_search_finds(seed: int) -> None:
    session = play(seed, 150)
    assert session.compared > 50
    assert session.wide > 5
    stats = session.engine.stats()
    assert stats.accepted > 50
    assert 0 < stats.draft_bytes < 320 * 4096


@pytest.mark.soak
def test_many_drafts_are_what_a_naive_search_finds(soak_count: int) -> None:
    sessions = [play(seed, 300) for seed in range(100, 100 + max(1, soak_count // 1000))]
    print(sum(session.compared for session in sessions), "drafts compared")
