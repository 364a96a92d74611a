"""Caches over an exported program without the step loop: one sequence, many, or many with draft trees.

    session = make_decode_session("path/of/model-folder", capacity=512)
    row = session.forward(prompt, rows=[len(prompt) - 1])[0]    # prefill; float32 [vocab_size]: what may follow
    row = session.forward([next_token])[0]                      # decode
    session.rewind(len(prompt))                                 # forget; no byte moves

The three sessions are interfaces to one bookkeeping. Any number of them run over one program, whose weights are loaded
once. A forward takes up to `max_tokens` rows and returns logits of up to `max_logits` of them: feed longer prompts in
parts, and name the rows whose logits you want. It is a transaction: one that raises leaves its session as it was.

A session belongs to one thread at a time. Errors are those of `agentkv_runtime._core`, which derive from `_core.Error`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from agentkv_runtime import _core
from agentkv_runtime._core import ExecuTorchSession, InvalidTensor
from agentkv_runtime.folder.model_folder import ModelFolder, read_model_folder
from agentkv_runtime.programs import open_session

__all__ = [
    "DecodeSession",
    "SeqSession",
    "TreeSession",
    "make_decode_session",
    "make_seq_session",
    "make_tree_session",
]

Logits = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
NO_TREES: Mapping[int, Sequence[int]] = MappingProxyType({})


class _Session:
    """Base of the three sessions: the program, its bounds, and the memory of keys and values."""

    def __init__(self, session: ExecuTorchSession, max_positions: int | None = None) -> None:
        self._session = session
        self.max_positions = max_positions
        """Positions that the model has, which bound the length of a sequence; None if unknown."""

    @property
    def vocab_size(self) -> int:
        """Logits per row."""
        return self._session.vocab_size

    @property
    def max_tokens(self) -> int:
        """Largest number of rows that one forward takes."""
        return self._session.max_tokens

    @property
    def max_logits(self) -> int:
        """Largest number of rows that one forward returns logits of."""
        return self._session.max_logits

    @property
    def capacity(self) -> int:
        """Cells of the cache."""
        return self._session.cache.capacity

    @property
    def used(self) -> int:
        """Cells that belong to at least one sequence."""
        return self._session.cache.used

    @property
    def kv_bytes(self) -> int:
        """Bytes allocated for keys and values now."""
        return self._session.kv_bytes

    def clear(self) -> None:
        """Forgets all sequences."""
        self._session.cache.clear()

    def _step(self, begin: Callable[[], None], tokens: Sequence[int], rows: Sequence[int] | None) -> Logits:
        fed = self._checked("token", tokens, self.vocab_size, self.max_tokens)
        wanted = np.arange(len(fed)) if rows is None else self._checked("row", rows, len(fed), self.max_logits)
        if len(wanted) > self.max_logits:
            raise InvalidTensor(
                f"logits of all {len(wanted)} rows were asked for, but a forward returns at most {self.max_logits}: "
                "name the rows that you want, as in rows=[len(tokens) - 1]"
            )
        cache = self._session.cache
        if cache.step_positions().size:
            raise _core.InvalidStep("a forward of this session is under way: it belongs to one thread at a time")
        try:
            begin()
            positions = cache.step_positions()
            if self.max_positions and positions.max() >= self.max_positions:
                raise _core.PositionsExhausted(
                    f"a row would take position {positions.max()}, but the model knows {self.max_positions}: forget "
                    "some of the sequence first"
                )
            logits = self._session.forward(fed, positions, wanted)
            cache.commit_step()
        except BaseException:
            cache.abort_step()
            raise
        return logits

    @staticmethod
    def _checked(what: str, values: Sequence[int], end: int, most: int) -> Ints:
        if len(values) > most:
            raise InvalidTensor(f"{len(values)} {what}s; a forward takes at most {most} of them")
        try:
            array = np.asarray(values, dtype=None if len(values) else np.int64)
        except ValueError as error:
            raise InvalidTensor(f"{what}s must be a sequence of integers: {error}") from error
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise InvalidTensor(f"{what}s must be a sequence of integers, not {array.dtype} of shape {array.shape}")
        for value in array[(array < 0) | (array >= end)]:
            raise InvalidTensor(f"{what} {value} is out of range [0, {end})")
        return array.astype(np.int64)


class DecodeSession(_Session):
    """One sequence, enough for a chat loop. `len()` is the number of cached tokens."""

    def __init__(self, session: ExecuTorchSession, max_positions: int | None = None) -> None:
        super().__init__(session, max_positions)
        self._cache = _core.ContiguousView(session.cache)

    def __len__(self) -> int:
        return len(self._cache)

    def forward(self, tokens: Sequence[int], rows: Sequence[int] | None = None) -> Logits:
        """Appends tokens `[T]` and returns the next-token logits of `rows`, of all by default: float32 `[N, vocab]`.

        The result is a copy; `rows=[]` computes none. Raises InvalidTensor, InvalidStep for no tokens at all,
        CacheFull, PositionsExhausted, ForwardFailed.
        """
        return self._step(lambda: self._cache.begin_step(len(tokens)), tokens, rows)

    def rewind(self, length: int) -> None:
        """Keeps the first `length` tokens. Raises InvalidRange unless 0 <= length <= len(self)."""
        self._cache.rewind(length)


class SeqSession(_Session):
    """Many sequences that share cells: one prefill and many samples, a batch of prompts, forks.

    Sequences are numbered from 0 to max_sequences - 1, and one that holds nothing needs no making.
    """

    @property
    def shared(self) -> int:
        """Cells that two sequences or more hold."""
        return self._session.cache.shared

    def forward(self, tokens: Sequence[int], seq_ids: Sequence[int], rows: Sequence[int] | None = None) -> Logits:
        """Row i, tokens[i], extends sequence seq_ids[i]; returns the next-token logits of `rows`: float32 `[N, vocab]`.

        Rows of one sequence take consecutive positions in row order. `rows` is all of them by default; the result is a
        copy. Raises InvalidTensor, InvalidStep, UnknownSequence, CacheFull, PositionsExhausted, ForwardFailed.
        """
        return self._step(lambda: self._session.cache.begin_step(self._ids(tokens, seq_ids)), tokens, rows)

    def seq_len(self, seq: int) -> int:
        """One past the last position that a sequence holds; 0 for one that holds nothing. Raises UnknownSequence."""
        return self._session.cache.seq_len(seq)

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Shares src's cells of positions [p0, p1) with dst, which must hold none there; p1 < 0 means the end.

        Copies no byte. Raises UnknownSequence, InvalidRange.
        """
        self._session.cache.seq_cp(src, dst, p0, p1)

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Forgets positions [p0, p1) of a sequence; cells that no other sequence holds are free.

        Draft nodes go with the sequence's last position. Raises UnknownSequence, InvalidRange.
        """
        self._session.cache.seq_rm(seq, p0, p1)

    def seq_keep(self, seq: int) -> None:
        """Forgets every other sequence. Raises UnknownSequence."""
        self._session.cache.seq_keep(seq)

    @staticmethod
    def _ids(tokens: Sequence[int], seq_ids: Sequence[int]) -> list[int]:
        if len(tokens) != len(seq_ids):
            raise InvalidTensor(f"{len(tokens)} tokens but {len(seq_ids)} sequence ids")
        return [index(seq) for seq in seq_ids]


class TreeSession(SeqSession):
    """Sequences that can have draft nodes, for speculation by hand."""

    def forward(
        self,
        tokens: Sequence[int],
        seq_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        trees: Mapping[int, Sequence[int]] = NO_TREES,
    ) -> Logits:
        """As for a SeqSession; the last len(trees[seq]) rows of a sequence are nodes of a draft tree.

        `trees[seq]` has each node's parent: the index of an earlier node of that sequence, or -1 for its last token. A
        node sees its ancestors and the sequence before them. Nodes are numbered on until `commit`, so a tree may grow
        level by level, one forward each. Raises InvalidTree as well.
        """

        def begin() -> None:
            ids = self._ids(tokens, seq_ids)
            for seq, parents in trees.items():
                if seq not in ids:
                    raise _core.InvalidTree(f"a tree for sequence {seq}, of which the forward has no rows")
                self._session.cache.propose([index(parent) for parent in parents], seq)
            self._session.cache.begin_step(ids)

        return self._step(begin, tokens, rows)

    def commit(self, accepted: Sequence[int], seq: int = 0) -> None:
        """Keeps a chain of nodes, each the parent of the next, as tokens of the sequence; its other nodes go.

        `commit([], seq)` forgets them all. Raises InvalidTree, UnknownSequence.
        """
        self._session.cache.commit([index(node) for node in accepted], seq)


def make_decode_session(
    folder: ModelFolder | str | Path,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    policy: str = "full",
) -> DecodeSession:
    """One sequence of up to `capacity` tokens over a model folder's program.

    K and V are kept as `kv_dtype` and allocated as needed, min_chunk cells first. `policy` says which positions stay
    cached: "full" for all, or one that was registered (`_core.cache_builders()`), as "name:argument" where it takes
    one. Raises ModelFolderError (of `agentkv_runtime.errors`) for a folder or an option that does not work,
    BackendError where its backend is not installed.
    """
    return DecodeSession(*_open(folder, capacity, kv_dtype, min_chunk, 1, policy))


def make_seq_session(
    folder: ModelFolder | str | Path,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    max_sequences: int = 256,
    policy: str = "full",
) -> SeqSession:
    """Like `make_decode_session`, for sequences 0 to max_sequences - 1, which share `capacity` cells."""
    return SeqSession(*_open(folder, capacity, kv_dtype, min_chunk, max_sequences, policy))


def make_tree_session(
    folder: ModelFolder | str | Path,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    max_sequences: int = 256,
    policy: str = "full",
) -> TreeSession:
    """Like `make_seq_session`, with draft trees."""
    return TreeSession(*_open(folder, capacity, kv_dtype, min_chunk, max_sequences, policy))


def _open(
    folder: ModelFolder | str | Path, capacity: int, kv_dtype: str, min_chunk: int, max_sequences: int, policy: str
) -> tuple[ExecuTorchSession, int | None]:
    if not isinstance(folder, ModelFolder):
        folder = read_model_folder(folder)
    session = open_session(
        folder,
        capacity=capacity,
        kv_dtype=kv_dtype,
        min_chunk=min_chunk,
        max_sequences=max_sequences,
        policy=policy,
    )
    return session, folder.manifest.max_positions
