"""Decomposition of a traced program into ExecuTorch's ops, in one retrace."""

from __future__ import annotations

from typing import Any

from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.tracer import _default_decomposition_table
from torch.export import ExportedProgram

__all__ = ["DecomposingPartitioner"]


class DecomposingPartitioner(Partitioner):  # type: ignore[misc]
    """Base of partitioners that decompose all but the `ops_to_not_decompose`.

    ExecuTorch makes a program functional in one retrace and decomposes it in a second one, each a fifth of an export's
    time; one does both.
    """

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Decomposes the program, which ExecuTorch then leaves as it is."""
        table: dict[Any, Any] = _default_decomposition_table()
        kept, _ = self.ops_to_not_decompose(exported_program)
        for op in kept:
            table.pop(op, None)
        done: ExportedProgram = exported_program.run_decompositions(table)
        done.run_decompositions = lambda *_: done
        return done
