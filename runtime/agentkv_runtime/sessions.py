"""Caches over an exported program without the step loop: one sequence, many, or many with draft trees.

    session = make_decode_session("path/of/model-folder", capacity=512)
    logits = session.forward(prompt)            # prefill; float32 [len(prompt), vocab_size]
    logits = session.forward([next_token])      # decode
    session.rewind(len(prompt))                 # forget; no byte moves

The three sessions are faces of one bookkeeping, and what a session can do is which of them you hold. Any number of them
run over one program, whose weights are loaded once. A forward is a transaction: one that raises leaves its session as
it was. A session belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentkv_runtime import _core
from agentkv_runtime._core import ExecuTorchSession
from agentkv_runtime.folder import ModelFolder, read_model_folder
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


class _Session:
    """What the three share: a program, and the memory of its keys and values."""

    def __init__(self, session: ExecuTorchSession) -> None:
        self._session = session

    @property
    def vocab_size(self) -> int:
        """Logits per row."""
        return self._session.vocab_size

    @property
    def max_tokens(self) -> int:
        """Rows that one forward takes at most."""
        return self._session.max_tokens

    @property
    def max_logits(self) -> int:
        """Rows that one forward returns logits of at most."""
        return self._session.max_logits

    @property
    def kv_bytes(self) -> int:
        """Bytes that keys and values take now."""
        return self._session.kv_bytes

    def _step(
        self, cache: _core.SteppedCache, begin: Callable[[], None], tokens: Sequence[int], rows: Sequence[int] | None
    ) -> Logits:
        wanted = range(len(tokens)) if rows is None else rows
        begin()
        try:
            logits = self._session.forward(
                np.asarray(tokens, np.int64), cache.step_positions(), np.asarray(wanted, np.int64)
            )
            cache.commit_step()
        except BaseException:
            cache.abort_step()
            raise
        return logits


class DecodeSession(_Session):
    """One sequence: what a chat loop needs. `len()` is how many tokens the cache holds."""

    def __init__(self, session: ExecuTorchSession) -> None:
        super().__init__(session)
        self.cache: _core.ContiguousCache = _core.ContiguousView(session.cache)

    def __len__(self) -> int:
        return len(self.cache)

    def forward(self, tokens: Sequence[int], rows: Sequence[int] | None = None) -> Logits:
        """Appends tokens `[T]` and returns the next-token logits of `rows`, of all by default: float32 `[N, vocab]`.

        T is at most `max_tokens` and N at most `max_logits`. Raises `_core.CacheFull`, InvalidTensor, ForwardFailed.
        """
        return self._step(self.cache, lambda: self.cache.begin_step(len(tokens)), tokens, rows)

    def rewind(self, length: int) -> None:
        """Keeps the first `length` tokens. Raises `_core.InvalidRange` unless 0 <= length <= len(self)."""
        self.cache.rewind(length)


class SeqSession(_Session):
    """Many sequences that share cells: one prefill and many samples, a batch of prompts, forks.

    `cache` has the verbs: seq_cp, seq_rm, seq_keep, seq_len, clear.
    """

    def __init__(self, session: ExecuTorchSession) -> None:
        super().__init__(session)
        self.cache: _core.SeqCache = session.cache

    def forward(self, tokens: Sequence[int], seq_ids: Sequence[int], rows: Sequence[int] | None = None) -> Logits:
        """Row i, tokens[i], extends sequence seq_ids[i]; returns the next-token logits of `rows`: float32 `[N, vocab]`.

        Rows of one sequence take consecutive positions in row order. `rows` is all of them by default. Raises
        `_core.CacheFull`, UnknownSequence, InvalidTensor, ForwardFailed.
        """
        if len(tokens) != len(seq_ids):
            raise _core.InvalidTensor(f"{len(tokens)} tokens but {len(seq_ids)} sequence ids")
        return self._step(self.cache, lambda: self.cache.begin_step(seq_ids), tokens, rows)


class TreeSession(SeqSession):
    """Sequences that can have draft nodes, for speculation by hand.

    `cache.propose(parents, seq)` says that the last rows of the sequence in the next forward are a tree (a parent is
    the index of an earlier node, or -1 for the last token kept); `cache.commit(accepted, seq)` keeps one chain of it.
    """

    def __init__(self, session: ExecuTorchSession) -> None:
        super().__init__(session)
        self.cache: _core.TreeSeqCache = session.cache


def make_decode_session(
    folder: ModelFolder | str | Path, *, capacity: int, kv_dtype: str = "fp16", min_chunk: int = 256
) -> DecodeSession:
    """One sequence of up to `capacity` tokens over a model folder's program.

    K and V are kept as `kv_dtype` and allocated as needed, min_chunk cells first. Raises ModelFolderError for a folder
    or an option that does not work, BackendError where its backend is not installed.
    """
    return DecodeSession(_open(folder, capacity, kv_dtype, min_chunk, max_sequences=1))


def make_seq_session(
    folder: ModelFolder | str | Path,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    max_sequences: int = 256,
) -> SeqSession:
    """The same for sequences 0 to max_sequences - 1, which share `capacity` cells."""
    return SeqSession(_open(folder, capacity, kv_dtype, min_chunk, max_sequences))


def make_tree_session(
    folder: ModelFolder | str | Path,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    max_sequences: int = 256,
) -> TreeSession:
    """The same with draft trees."""
    return TreeSession(_open(folder, capacity, kv_dtype, min_chunk, max_sequences))


def _open(
    folder: ModelFolder | str | Path, capacity: int, kv_dtype: str, min_chunk: int, max_sequences: int
) -> ExecuTorchSession:
    if not isinstance(folder, ModelFolder):
        folder = read_model_folder(folder)
    return open_session(folder, capacity=capacity, kv_dtype=kv_dtype, min_chunk=min_chunk, max_sequences=max_sequences)
