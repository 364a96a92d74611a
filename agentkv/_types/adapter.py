"""A LoRA adapter that is loaded in a Context."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA adapter, loaded by `Context.adapter` until its Context closes. Branches get it by
    `Context.branch(adapter=...)` and `Branch.adapter`.

    Attributes:
        name: its name, by default that of its folder.
        rank: the largest rank of its modules.
        modules: names of the linear layers that it changes.
        nbytes: memory of its matrices, in bytes.
        digest: digest of what it adds; saved branches and journals name it by this.
        id: number within its Context; never reused.
    """

    name: str
    rank: int
    modules: tuple[str, ...]
    nbytes: int
    digest: str
    id: int
    scope: object
    """Identity of its Context."""

    def __repr__(self) -> str:
        return f"<Adapter {self.name}: rank {self.rank}, {len(self.modules)} modules, {self.nbytes:,} bytes>"
