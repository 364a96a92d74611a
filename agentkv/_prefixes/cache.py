"""The prefix cache of a Context: beginnings of prompts are read from a folder before, and written to it behind, the
work on the prompt itself. Whatever fails is told once, and the prompt is computed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from filelock import Timeout

from .._aio.lock import Lock
from .._engine.commands import CellsCall, EngineCall
from .._engine.interface import PrefixEngine
from .._engine.loop import in_thread
from .._storage.layout import CellArray, cell_arrays
from .._storage.rates import WorkRate
from .._types.errors import ContextFull, InvalidInput, SnapshotError, TooManyBranches
from .._types.log import log
from .folder import LEAST_TOKENS, PrefixFolder, PromptNames, StoredPrefix
from .hashes import BLOCK
from .read import read_entry
from .write import EntryWriter, KeptPrefix

if TYPE_CHECKING:
    from .._engine.interface import CellStore, StepEngine
    from .._engine.loop import StepLoop
    from .._storage.layout import ModelKey


class PrefixCounts(NamedTuple):
    """Counters, under their names in `Stats`."""

    prefix_cache_hits: int = 0
    prefix_cache_tokens: int = 0
    prefix_cache_bytes: int = 0
    prefix_cache_written: int = 0


class CellLayout(NamedTuple):
    """The cells of this Context."""

    arrays: list[CellArray]
    states: list[CellArray]
    cell_bytes: int

    @classmethod
    def of(cls, _: StepEngine, cells: CellStore) -> CellLayout:
        """Asks the cells."""
        return cls(cell_arrays(cells.cell_arrays), cell_arrays(cells.state_arrays), cells.cell_bytes)

    @property
    def exact(self) -> bool:
        """Whether cells serve the beginning that they were read for alone, as some layers have windows or states."""
        return bool(self.states) or any(array.group is not None for array in self.arrays)


class Streams(Protocol):
    """Random numbers of one prompt, however often it is tried."""

    def take_stream(self, engine: StepEngine) -> int:
        """The stream, on the step loop's thread."""


class PromptPlan:
    """What is read and written for one prompt. Its job calls `create` and `computed` on the step loop's thread; the
    other methods are called on the event loop."""

    def __init__(self, cache: PrefixCache, tokens: Sequence[int], streams: Streams | None = None) -> None:
        self._cache = cache
        self._source = streams
        self._tokens = tokens
        self._in_memory = 0
        self._made = 0
        self._streams: list[int] = []
        self.pin: int | None = None  # of rows that were read
        self.nbytes = 0  # of their file
        self.kept: KeptPrefix | None = None  # what is written, once it is computed

    def take_stream(self) -> EngineCall[None]:
        """A command that gives the branch the random numbers that it has where nothing is looked up: those of the order
        in which prompts come, however long what each begins with takes to read."""

        def take(engine: StepEngine) -> None:
            prompts = cast(PrefixEngine, engine)
            self._streams.append(prompts.take_stream() if self._source is None else self._source.take_stream(prompts))

        return EngineCall(take)

    def create(self, engine: StepEngine) -> tuple[int, int]:
        """Makes the branch; returns its id and the number of tokens that it has already."""
        prompts = cast(PrefixEngine, engine)
        if self.pin is not None:
            self._in_memory = prompts.n_reusable(self._tokens)
        parts_at = len(self.kept.tokens) if self.kept else 0
        branch, self._made = prompts.create_prompt(self._tokens, self.pin, parts_at, self._streams.pop())
        return branch, self._made

    def created(self) -> None:
        """Counts what was read, once the branch is made."""
        if self._made > self._in_memory and self.pin is not None:
            self._cache.count_hit(self._made - self._in_memory, self.nbytes)

    def computed(self, engine: StepEngine, branch: int) -> None:
        """Pins what is to be written, when all of the prompt is computed."""
        if self.kept is not None:
            self.kept.pin_rows(engine, branch)

    def finish(self, seconds: float) -> None:
        """Begins to write; the prompt took so long."""
        self._cache.note_computed(len(self._tokens) - self._made, seconds)
        if self.kept is not None:
            self._cache.writer.start(self.kept)

    def leave(self) -> None:
        """Ends the plan of a prompt that failed, or was given up. Idempotent, also after `finish`."""
        if self.kept is not None and not self.kept.started:
            self._cache.writer.leave(self.kept)


class PrefixCache:
    """Reads and writes the entries of one Context.

    Attributes:
        counts: what was read and written.
        writer: writes entries.
    """

    def __init__(
        self, loop: StepLoop, model_key: Callable[[], ModelKey], root: Path, most_bytes: int, maps: bool
    ) -> None:
        self._loop = loop
        self._model_key = model_key
        self._root = root
        self._most_bytes = most_bytes
        self._maps = maps  # whether the byte layer maps files
        self._opening = Lock()
        self._opened: tuple[CellLayout, PrefixFolder] | None = None
        self._one_reads = Lock()  # prompts that begin alike wait for the first, and share what it has read
        self._writes = True
        self._computing, self._reading = WorkRate(), WorkRate()  # of tokens, of bytes
        self.writer = EntryWriter(loop, maps, self._wrote)
        self.counts = PrefixCounts()

    @asynccontextmanager
    async def planned(
        self, tokens: Sequence[int], common: bool, streams: Streams | None = None
    ) -> AsyncIterator[PromptPlan]:
        """Reads what a prompt begins with, as far as it is stored and not in memory, and decides what is to be stored;
        for the block until its branch is made. With `common` others begin with all of it. `streams` gives all attempts
        at the prompt the same random numbers."""
        plan = PromptPlan(self, tokens, streams)
        self._loop.submit(plan.take_stream())
        if len(tokens) <= LEAST_TOKENS:
            yield plan
            return
        layout, folder = await self._folder()
        names, entry, begun = await in_thread(self._loop, partial(self._look_up, folder, tokens, common))
        async with AsyncExitStack() as stack:
            if entry is not None:
                await stack.enter_async_context(self._one_reads)
                entry = await self._read(stack, plan, entry, tokens)
            if begun and folder.worth_keeping(begun, entry, layout.cell_bytes):
                plan.kept = await self.writer.admit(folder, names, tokens[:begun])
            yield plan

    def count_hit(self, tokens: int, nbytes: int) -> None:
        """Counts a prompt that began with `tokens` of a file that were not in memory."""
        hits, read, of, written = self.counts
        self.counts = PrefixCounts(hits + 1, read + tokens, of + nbytes, written)

    def note_computed(self, tokens: int, seconds: float) -> None:
        """Measures what computing takes."""
        if tokens >= LEAST_TOKENS:
            self._computing.add(seconds, tokens)

    def note_read(self, nbytes: int, seconds: float) -> None:
        """Measures what reading takes."""
        self._reading.add(seconds, nbytes)

    async def close(self) -> None:
        """Ends what is being written, unfinished, and waits for its threads."""
        await in_thread(self._loop, self.writer.close)

    def abandon(self) -> None:
        """Ends what is being written, for a coroutine that is torn down and cannot await."""
        self.writer.stop()

    async def _folder(self) -> tuple[CellLayout, PrefixFolder]:
        async with self._opening:
            if self._opened is None:
                layout = await self._loop.run(CellsCall(CellLayout.of))
                key = await in_thread(self._loop, self._model_key)
                folder = PrefixFolder(self._root, key, self._most_bytes, layout.exact)
                self._opened = layout, folder
            return self._opened

    def _look_up(
        self, folder: PrefixFolder, tokens: Sequence[int], common: bool
    ) -> tuple[PromptNames, StoredPrefix | None, int]:
        """The names of a prompt, its entry, and how much of it others begin with; runs in a thread."""
        names, begun = folder.names(tokens), 0
        if self._writes:
            try:
                folder.make()
                begun = folder.note(names)
            except OSError as error:
                self._cannot_write(error)
            else:
                begun = len(names.hashes) * BLOCK if common else begun
        return names, folder.look_up(tokens, names), begun

    async def _read(
        self, stack: AsyncExitStack, plan: PromptPlan, entry: StoredPrefix, tokens: Sequence[int]
    ) -> StoredPrefix | None:
        """Reads an entry into a pin for the plan, if that is quicker than computing what memory lacks of it. Returns
        the entry, None if it is gone."""
        layout, folder = await self._folder()
        in_memory = await self._loop.call(lambda engine: cast(PrefixEngine, engine).n_reusable(tokens))
        if entry.length - in_memory < LEAST_TOKENS:
            return entry
        file = await in_thread(self._loop, partial(folder.open, entry, tokens))
        if file is None:
            return None
        if not self._pays(entry.length - in_memory, file.nbytes):
            return entry
        began = time.perf_counter()
        try:
            pin = await read_entry(stack, self._loop, file, entry.length, layout.arrays, layout.states, self._maps)
        except (SnapshotError, InvalidInput) as error:
            await in_thread(self._loop, partial(folder.drop, entry.path, str(error)))
            return None
        except (ContextFull, TooManyBranches):
            pass  # the prompt itself is refused, or fits without
        else:
            self.note_read(file.nbytes, time.perf_counter() - began)
            plan.pin, plan.nbytes = pin.id, file.nbytes
        return entry

    def _pays(self, tokens: int, nbytes: int) -> bool:
        computing, reading = self._computing.seconds(tokens), self._reading.seconds(nbytes)
        return computing is None or reading is None or reading < computing

    def _wrote(self, outcome: bool | Exception) -> None:
        """Takes note of what was written; called on the event loop."""
        if isinstance(outcome, Exception):
            self._cannot_write(outcome)
        else:
            self.counts = self.counts._replace(prefix_cache_written=self.counts.prefix_cache_written + outcome)

    def _cannot_write(self, error: Exception) -> None:
        if self._writes:
            self._writes = False
            why = "another process holds its lock" if isinstance(error, Timeout) else str(error)
            log.warning("prefixes are not kept any more in this Context", folder=str(self._root), why=why)
