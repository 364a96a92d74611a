"""Strategies that users might write, from a good one to the worst."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agentkv as kv

Tokens = NDArray[np.int32]


class LastTime:
    """Guesses that what followed the last two tokens before follows them again."""

    adaptive = False

    def propose(self, branch: int, tokens: Tokens, limit: int) -> kv.spec.Draft | None:
        if len(tokens) < 3:
            return None
        places = np.flatnonzero((tokens[:-2] == tokens[-2]) & (tokens[1:-1] == tokens[-1]))
        if not places.size:
            return None
        start = places[-1] + 2
        return kv.spec.Draft.chain(tokens[start : start + min(limit, 8)])


class Recorded:
    """Knows how plain decoding went on: always right where `offset` is 0, always wrong where it is not."""

    adaptive = False

    def __init__(self, runs: Iterable[Sequence[int]], vocab_size: int, depth: int = 6, offset: int = 0) -> None:
        self.runs = [list(run) for run in runs]
        self.vocab_size = vocab_size
        self.depth = depth
        self.offset = offset

    def rest(self, tokens: Tokens) -> list[int]:
        """What comes after these tokens in the run that begins with them."""
        held = tokens.tolist()
        return next((run[len(held) :] for run in self.runs if run[: len(held)] == held), [])

    def propose(self, branch: int, tokens: Tokens, limit: int) -> kv.spec.Draft | None:
        rest = self.rest(tokens)[: min(limit, self.depth)]
        return kv.spec.Draft.chain((token + self.offset) % self.vocab_size for token in rest)


class RandomTrees(Recorded):
    """Trees of up to 64 nodes and 12 levels, some of whose nodes are right."""

    def __init__(self, runs: Iterable[Sequence[int]], vocab_size: int, seed: int = 0) -> None:
        super().__init__(runs, vocab_size)
        self.rng = random.Random(seed)

    def propose(self, branch: int, tokens: Tokens, limit: int) -> kv.spec.Draft | None:
        rng, rest = self.rng, self.rest(tokens)
        parents: list[int] = []
        made: list[int] = []
        depths: list[int] = []
        right: list[bool] = []
        for node in range(rng.randint(0, 64)):
            # Often the last node, so that trees become deep.
            parent = node - 1 if rng.random() < 0.5 else rng.randrange(-1, node)
            depth = 0 if parent < 0 else depths[parent] + 1
            on_the_way = (parent < 0 or right[parent]) and depth < len(rest)
            true = on_the_way and rng.random() < 0.5
            token = rest[depth] if true else rng.randrange(self.vocab_size)
            if depth >= 12 or any(p == parent and t == token for p, t in zip(parents, made, strict=True)):
                parent, depth, token, true = -1, 0, max([-1, *made]) + 1, False
                if token >= self.vocab_size:
                    break
            parents.append(parent)
            made.append(token)
            depths.append(depth)
            right.append(true)
        return kv.spec.Draft(made, np.array(parents, dtype=np.int64), [rng.uniform(0.01, 1) for _ in made])


class Answers:
    """Proposes whatever it was given; raises it where it is an exception."""

    adaptive = False

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def propose(self, branch: int, tokens: Tokens, limit: int) -> Any:
        if isinstance(self.answer, Exception):
            raise type(self.answer)(*self.answer.args)  # a fresh one: the parameter outlives the frames it would hold
        return self.answer


class Listener:
    """Proposes nothing and remembers what it is told."""

    adaptive = False  # asked every time

    def __init__(self) -> None:
        self.heard: dict[int, dict[int, int]] = {}  # branch: {position: token}
        self.asked: list[tuple[int, list[int], int]] = []
        self.features: list[Any] = []
        self.on_observe: Callable[[], None] | None = None

    def propose(self, branch: int, tokens: Tokens, limit: int) -> None:
        assert tokens.dtype == np.int32
        self.asked.append((branch, tokens.tolist(), limit))

    def observe(self, branch: int, first: int, tokens: Tokens, features: NDArray[np.float32] | None) -> None:
        if self.on_observe is not None:
            self.on_observe()
        self.heard.setdefault(branch, {}).update(enumerate(tokens.tolist(), first))
        self.features.append(features)
