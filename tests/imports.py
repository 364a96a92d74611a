"""What Python files import, by absolute names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Imported(NamedTuple):
    """`from module import name`, or `import module` with an empty name; and its line."""

    module: str
    name: str
    line: int

    @property
    def inside(self) -> str:
        """The name within the module, which may be a module itself."""
        return ".".join(filter(None, (self.module, self.name)))


def imports_in(package: Sequence[str], nodes: Iterable[ast.AST]) -> Iterator[Imported]:
    """Imports among some nodes of a file, whose package relative imports start from."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Imported(alias.name, "", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *(node.module.split(".") if node.module else ())])
            yield from (Imported(module, alias.name, node.lineno) for alias in node.names)
