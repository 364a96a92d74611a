"""Writes entries in threads, beside everything else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from .._chat.conversation import Conversation
from .._engine.interface import PrefixEngine
from .._storage.layout import BranchImage
from .._storage.save import pinned_branches, slices
from .._storage.writer import begin_file

if TYPE_CHECKING:
    from .._engine.interface import StepEngine
    from .._engine.loop import StepLoop
    from .folder import PrefixFolder, PromptNames

SLICE_BYTES = 1 << 20  # of cells copied between two forwards: a fraction of a millisecond
MOST_AT_ONCE = 2  # entries; further ones are written when their like comes again


class KeptPrefix:
    """A beginning of a prompt that is written once it is computed."""

    def __init__(self, folder: PrefixFolder, names: PromptNames, tokens: Sequence[int]) -> None:
        self.folder = folder
        self.tokens = np.asarray(tokens, np.int32)
        self.names = names
        self.path = folder.path_of(names, len(tokens))
        self.pin: int | None = None
        self.started = False
        self.over = False  # written, or given up

    def pin_rows(self, engine: StepEngine, branch: int) -> None:
        """Pins the cells of a branch that begins with it, if rows to come would miss nothing behind it. Runs on the
        step loop's thread."""
        count = len(self.tokens)
        with suppress(Exception):  # there is no place for it now: the prompt goes on
            if self.over or cast(PrefixEngine, engine).n_reusable([*self.tokens.tolist(), 0]) != count:
                return
            pin, (image,) = engine.pin([branch])
            rows = image.rows.tolist()
            whole = bool(rows) and rows[0][:2] == [0, 0] and rows[0][2] >= count
            self.pin = pin.id
            if not whole or image.forgotten or image.exact_from or self.over:  # in this order: `leave` looks at `pin`
                self.pin = None
                engine.unpin(pin.id)


class EntryWriter:
    """Threads that write entries. All methods but `close` are called on the event loop.

    Args:
        maps: whether the byte layer maps files.
        done: gets whether each entry was written, or the error that it was not written for.
    """

    def __init__(self, loop: StepLoop, maps: bool, done: Callable[[bool | Exception], None]) -> None:
        self._loop = loop
        self._maps = maps
        self._done = done
        self._under_way: set[Path] = set()
        self._threads: set[threading.Thread] = set()
        self._stopping = False

    @property
    def busy(self) -> bool:
        """Whether entries are about to be written."""
        return bool(self._under_way)

    async def admit(self, folder: PrefixFolder, names: PromptNames, tokens: Sequence[int]) -> KeptPrefix | None:
        """Begins an entry, which `start` or `leave` ends. None where it is being written, or enough others are."""
        kept = KeptPrefix(folder, names, tokens)
        busy = kept.path in self._under_way or len(self._under_way) >= MOST_AT_ONCE or not self._loop.pins.value
        if busy or self._stopping:
            return None
        await self._loop.pins.acquire()  # at once: there is a place
        self._under_way.add(kept.path)
        return kept

    def start(self, kept: KeptPrefix) -> None:
        """Writes an entry whose rows are pinned."""
        if kept.pin is None or kept.over or self._stopping:
            return self.leave(kept)
        kept.started = True
        thread = threading.Thread(target=self._run, args=(kept, kept.pin), name="agentkv-file", daemon=True)
        self._threads.add(thread)
        thread.start()
        return None

    def leave(self, kept: KeptPrefix) -> None:
        """Ends an entry that is not written. Idempotent."""
        if not kept.over:
            kept.over = True
            if kept.pin is not None:
                self._loop.unpin(kept.pin)
            self._under_way.discard(kept.path)
            self._loop.pins.release()

    def stop(self) -> None:
        """Ends what is being written, unfinished."""
        self._stopping = True

    def close(self) -> None:
        """Ends what is being written, unfinished, and waits for the threads. Called in a thread."""
        self._stopping = True
        for thread in list(self._threads):
            thread.join()

    def _run(self, kept: KeptPrefix, pin: int) -> None:
        outcome: bool | Exception
        try:
            outcome = self._write(kept, pin)
        except Exception as error:
            outcome = error
        self._loop.post(partial(self._ended, kept, threading.current_thread(), outcome))

    def _ended(self, kept: KeptPrefix, thread: threading.Thread, outcome: bool | Exception) -> None:
        self._threads.discard(thread)
        self.leave(kept)
        if not self._stopping:
            self._done(outcome)

    def _write(self, kept: KeptPrefix, pin: int) -> bool:
        folder, tokens = kept.folder, kept.tokens
        count = len(tokens)
        call = self._loop.call_in_thread
        taken = call(lambda engine, cells: pinned_branches(pin, count, [], self._maps, engine, cells))
        image = BranchImage(tokens, np.array([[0, 0, count]], np.int32), 0, 0, np.zeros(0, np.float32), Conversation())
        branches = {"prefix": image}
        file = begin_file(
            kept.path, folder.key, taken.arrays, taken.lacks, branches, taken.lanes, taken.states, mode=0o600
        )
        try:
            if file.nbytes > folder.most_bytes:
                return False
            folder.make_room(file.nbytes)
            for read, append in slices(taken, SLICE_BYTES):
                append(file, call(read))
                if self._stopping:
                    return False
            file.finish()
        finally:
            file.discard()
        folder.make_room(0)
        folder.drop_parts(tokens, kept.names)
        return True
