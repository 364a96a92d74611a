"""From generated conversations to padded batches of tokens and loss weights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from .data import TAUGHT, Mix, conversation, lesson
from .pools import Pool
from .tokenizer import render

CHUNK = 512  # conversations that are sorted by length together, so that batches hold little padding
LONGEST = 1536


@dataclass(frozen=True)
class Batch:
    """Token ids `[rows, length]`, and which of them the assistant wrote."""

    tokens: npt.NDArray[np.int64]
    spoken: npt.NDArray[np.bool_]
    padding: npt.NDArray[np.bool_]


class Batches:
    """An endless, seeded stream; `chunk` and `echoes` say where to take it up again."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, budget: int, pool: Pool = "train", mix: Mix = TAUGHT
    ) -> None:
        self._tokenizer = tokenizer
        self._mix = mix
        self._pool = pool
        self._seed = seed
        self._budget = budget
        self._opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        self._pending: list[Batch] = []
        self.chunk = 0
        self.echoes = 0

    def echo(self) -> Batch:
        """Random tokens, said over again: the plainest exercise in copying, learnt within two hundred batches."""
        rng = np.random.default_rng((self._seed, self.echoes))
        self.echoes += 1
        size, times = int(rng.integers(6, 24)), int(rng.integers(2, 5))
        rows = max(1, self._budget // (3 * size * times))
        tokens = np.tile(rng.integers(0, len(self._tokenizer), (rows, size)), (1, times))
        spoken = np.tile(np.arange(size * times) >= size, (rows, 1))
        return Batch(tokens, spoken, np.zeros_like(spoken))

    def take(self, lessons: float) -> Batch:
        """The next batch; `lessons` is the share of copying exercises in chunks made from here on."""
        if not self._pending:
            self._pending = list(self._make(lessons))
            self.chunk += 1
        return self._pending.pop()

    def _make(self, lessons: float) -> Iterator[Batch]:
        rng = random.Random(f"{self._seed}:{self.chunk}")
        pool = self._pool
        talks = [
            lesson(rng, pool) if rng.random() < lessons else conversation(rng, pool, mix=self._mix)
            for _ in range(CHUNK)
        ]
        rows = self._tokenizer([render(talk) for talk in talks], add_special_tokens=False)["input_ids"]
        rows = sorted((row[:LONGEST] for row in rows), key=len)
        batches = []
        while rows:
            length = -(-len(rows[-1]) // 32) * 32
            count = max(1, self._budget // length)
            batches.append(self._pad(rows[-count:], length))
            del rows[-count:]
        rng.shuffle(batches)
        yield from batches

    def _pad(self, rows: list[list[int]], length: int) -> Batch:
        tokens = np.full((len(rows), length), self._tokenizer.pad_token_id, dtype=np.int64)
        spoken = np.zeros((len(rows), length), dtype=np.bool_)
        padding = np.ones((len(rows), length), dtype=np.bool_)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = row
            padding[index, : len(row)] = False
            for start, end in self.spoken(row):
                spoken[index, start:end] = True
        return Batch(tokens, spoken, padding)

    def spoken(self, row: list[int]) -> Iterator[tuple[int, int]]:
        """The spans that the assistant writes, each with its closing token."""
        size, start = len(self._opening), None
        for index, token in enumerate(row):
            if row[index : index + size] == self._opening:
                start = index + size
            elif token == self._tokenizer.eos_token_id and start is not None:
                yield start, index + 1
                start = None
