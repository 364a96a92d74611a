"""The LoRA adapters that are loaded in one Context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from .._types.adapter import Adapter
from .._types.errors import AdapterError, SnapshotMismatch
from .._types.show import preview

if TYPE_CHECKING:
    from agentkv_runtime.adapters import LoraAdapter

NO_ADAPTER = 0  # the engine's id of none


class LoadedAdapters:
    """The adapters of a Context, by the engine's ids and by digest.

    Attributes:
        loading: held while an adapter is loaded, so that none is loaded twice.
    """

    def __init__(self) -> None:
        self._of: dict[int, Adapter] = {}
        self._scope = object()
        self.loading = anyio.Lock()

    def add(self, id: int, name: str, loaded: LoraAdapter) -> Adapter:
        """Adds an adapter that the engine has under this id."""
        made = Adapter(name, loaded.rank, loaded.modules, loaded.nbytes, loaded.digest, id, self._scope)
        self._of[id] = made
        return made

    def __len__(self) -> int:
        return len(self._of)

    def of(self, id: int) -> Adapter | None:
        """The adapter of the engine's id."""
        return self._of.get(id)

    def name_of(self, id: int) -> str:
        """The name of the adapter of the engine's id."""
        return self._of[id].name

    def found(self, digest: str) -> Adapter | None:
        """The adapter of this digest; None if it is not loaded."""
        return next((each for each in self._of.values() if each.digest == digest), None)

    def checked(self, adapter: object) -> int:
        """The engine's id of an adapter, or of None. Raises AdapterError for anything else."""
        if adapter is None:
            return NO_ADAPTER
        if not isinstance(adapter, Adapter):
            raise AdapterError(f"adapter is {preview(adapter)}, but it takes what `await ctx.adapter(folder)` returns")
        if adapter.scope is not self._scope:
            raise AdapterError(f"adapter {adapter.name!r} is loaded in another Context; load it in this one as well")
        return adapter.id

    def digests(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, str]]:
        """Spans of a branch, (position, id), as files have them: (position, digest), of none an empty one."""
        return [(first, self._of[id].digest if id else "") for first, id in spans]

    def ids(self, spans: Sequence[tuple[int, str]]) -> list[tuple[int, int]]:
        """Inverse of `digests`. Raises SnapshotMismatch for an adapter that is not loaded."""
        found = []
        for first, digest in spans:
            adapter = self.found(digest)
            if digest and adapter is None:
                raise SnapshotMismatch(
                    f"the branch was computed with a LoRA adapter that is not loaded here ({digest[:23]}...); load it "
                    "first: await ctx.adapter(folder)"
                )
            found.append((first, adapter.id if adapter else NO_ADAPTER))
        return found
