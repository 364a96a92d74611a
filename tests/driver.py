"""Drives a program over its cache step by step, without the step loop: the shortest way to any mixture of rows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class Driver:
    """A program, its cells, and the token log of every sequence."""

    def __init__(self, program: Any, cells: Any, max_logits: int = 64) -> None:
        self.program = program
        self.cells = cells
        self.max_logits = max_logits
        self.logs: dict[int, list[int]] = {}

    def step(self, rows: Sequence[tuple[int, int]], wanted: Sequence[int] | None = None) -> Logits:
        """Feeds (sequence, token) rows in one forward; logits `[len(wanted), vocab]`, by default of every row."""
        wanted = range(len(rows)) if wanted is None else wanted
        self.cells.begin_step([seq for seq, _ in rows])
        try:
            logits = self.program.forward(
                np.array([token for _, token in rows], dtype=np.int64),
                np.array(list(self.cells.step_positions()), dtype=np.int64),
                np.array(wanted, dtype=np.int64),
            )
        except BaseException:
            self.cells.abort_step()
            raise
        self.cells.commit_step()
        for seq, token in rows:
            self.logs.setdefault(seq, []).append(token)
        return logits

    def advance(self, pieces: Mapping[int, Sequence[int]], shuffle: random.Random | None = None) -> dict[int, Logits]:
        """Feeds each sequence its tokens, all in one forward; logits of every row, by sequence.

        Sequences come one after another, or with `shuffle` interleaved at random.
        """
        left = {seq: list(tokens) for seq, tokens in pieces.items()}
        order = [seq for seq, tokens in pieces.items() for _ in tokens]
        if shuffle is not None:
            shuffle.shuffle(order)
        logits = self.step([(seq, left[seq].pop(0)) for seq in order])
        return {seq: logits[[row for row, owner in enumerate(order) if owner == seq]] for seq in pieces}

    def feed(self, seq: int, tokens: Sequence[int], chunks: Sequence[int] = ()) -> Logits:
        """Feeds tokens in chunks of the given sizes, then the rest at once; logits of every row."""
        out: list[Logits] = []
        at = 0
        for size in [*chunks, len(tokens)]:
            piece = tokens[at : at + size]
            at += len(piece)
            if len(piece):
                out.append(self.step([(seq, int(token)) for token in piece]))
        return np.concatenate(out)

    def fork(self, src: int, dst: int) -> None:
        """dst shares all that src holds."""
        self.cells.seq_cp(src, dst)
        self.logs[dst] = list(self.logs[src])

    def rollback(self, seq: int, length: int) -> None:
        """Forgets all from a length on."""
        self.cells.seq_rm(seq, length)
        del self.logs[seq][length:]

    def close(self, seq: int) -> None:
        """Frees a sequence."""
        self.cells.seq_rm(seq)
        del self.logs[seq]


def lost(got: Logits, want: Logits) -> float:
    """How far logits are off, beside how they differ among each other."""
    return float(np.sqrt(np.mean((got - want) ** 2)) / want.std())


def oracle_driver(folder: Path, *, capacity: int = 256, kv_dtype: str = "fp32", min_chunk: int = 8) -> Driver:
    """The oracle over the plain bookkeeping; nothing native takes part. `driver.program.cache` is its byte layer."""
    from agentkv_runtime.torch_backend.cache import TorchCache
    from agentkv_runtime.torch_backend.model import TorchModel

    from tests.reference_cells import ReferenceCells

    class Program:
        def __init__(self) -> None:
            self.model = TorchModel(folder)
            self.cells = ReferenceCells(capacity)
            layers = self.model.cached.n_layers
            self.cache = TorchCache(
                self.cells, n_layers=layers, capacity=capacity, kv_dtype=kv_dtype, min_chunk=min_chunk
            )

        def forward(self, tokens: Any, positions: Any, indices: Any) -> Logits:
            logits, _features = self.model.forward(self.cache, tokens, positions, indices)
            rows: Logits = logits.numpy()
            return rows

    program = Program()
    return Driver(program, program.cells)


def native_driver(program: Any, *, capacity: int = 256, kv_dtype: str = "fp32", min_chunk: int = 16) -> Driver:
    """A fresh cache over a loaded ExecuTorchProgram."""
    session = program.make_session(capacity=capacity, kv_dtype=kv_dtype, min_chunk=min_chunk)
    return Driver(session, session.cache, max_logits=session.max_logits)
