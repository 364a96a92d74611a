"""What the branches of one Context hold, by the verbs alone: tokens, and cells that are told apart but lie nowhere.

A verb that changes what a branch holds is a method of Line or Oracle, and a verb of `random_verbs.py` that calls
it once the real one is done.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace


class Cell:
    """One cell of the cache; equal to itself alone."""

    __slots__ = ()


@dataclass(eq=False)
class Line:
    """What one branch holds."""

    tokens: list[int] = field(default_factory=list)
    cells: list[Cell | None] = field(default_factory=list)  # of each token; None where it has none in the cache
    pending: bool = False  # the last token was never fed
    known: bool = False  # the logits after the last token are there
    lends: bool = True  # prompts that begin alike may share its cells
    waiting: list[int] = field(default_factory=list)  # positions whose cells are outside of the cache

    def copy(self) -> Line:
        """The same again, over the same cells."""
        return replace(self, tokens=[*self.tokens], cells=[*self.cells], waiting=[*self.waiting])

    @property
    def cached(self) -> int:
        """How many tokens the cache has, from the first on."""
        return len(self.tokens) - self.pending - len(self.waiting)

    def feed(self, tokens: list[int]) -> None:
        """More tokens, and the pending one before them."""
        if self.pending:
            self.cells[-1] = Cell()
        self.tokens += tokens
        self.cells += [Cell() for _ in tokens]
        self.pending, self.known = False, True

    def row(self) -> None:
        """The logits after the last token, which is fed, again if need be, where they are not known."""
        if not self.known:
            self.cells[-1] = Cell()
        self.pending, self.known = False, True

    def generate(self, tokens: list[int]) -> None:
        """So many tokens were sampled, of which the last is pending."""
        if tokens:
            self.row()
            self.feed(tokens)
            self.cells[-1] = None
            self.pending, self.known = True, False

    def roll_back(self, length: int) -> None:
        """Only the first tokens stay."""
        if length < len(self.tokens):
            del self.tokens[length:], self.cells[length:]
            self.pending = self.known = False

    def leave(self, first: int) -> None:
        """Cells from a position on leave the cache."""
        self.waiting = list(range(first, self.cached))
        for position in self.waiting:
            self.cells[position] = None

    def come_back(self) -> None:
        """They are there again, in other cells."""
        for position in self.waiting:
            self.cells[position] = Cell()
        self.waiting = []


class Oracle:
    """All branches, by their ids, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lines: dict[int, Line] = {}

    def owners(self) -> Counter[Cell]:
        """How many branches have each cell that is in use."""
        return Counter(cell for line in self.lines.values() for cell in line.cells if cell is not None)

    @property
    def free(self) -> int:
        """Cells that nobody has."""
        return self.capacity - len(self.owners())

    def unshared_from(self, line: Line) -> int:
        """The position from which on nobody else has its cells."""
        owners = self.owners()
        first = line.cached
        while first > 0 and owners[line.cells[first - 1]] == 1:  # type: ignore[index]
            first -= 1
        return first

    def row_needs(self, line: Line) -> int:
        """Cells that the logits of a branch take: one, unless its last token has one to itself that is fed again."""
        if line.known:
            return 0
        return 1 if line.pending else int(self.unshared_from(line) == len(line.tokens))

    def lent(self, tokens: list[int]) -> list[Cell | None]:
        """The cells that a new prompt shares with a live branch: all but its last token's at most."""
        most: list[Cell | None] = []
        for line in self.lines.values():
            same = common(tokens[:-1], line.tokens[: line.cached])
            if line.lends and same > len(most):
                most = line.cells[:same]
        return most


def common(a: list[int], b: list[int]) -> int:
    """How many tokens both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def loaded(saved: dict[str, Line]) -> dict[str, Line]:
    """What comes of saved branches: cells of their own, shared as the saved ones were, and with nobody else."""
    fresh: dict[Cell, Cell] = {}
    return {
        name: replace(line.copy(), cells=[cell and fresh.setdefault(cell, Cell()) for cell in line.cells], lends=False)
        for name, line in saved.items()
    }
