"""Fewer retraces of a program on its way to ExecuTorch's ops, each of which is a twentieth of an export's time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from executorch.exir.program import _program
from torch._export import utils as torch_export

__all__ = ["retraced_once"]

Passes = list[Callable[..., Any]]


# Each looks at one call at a time, and hands it to its base class. They follow each other: RemoveMixedTypeOperators,
# which looks so, too, comes after passes that change dtypes (of a concatenation whose empty parts are dropped).
_OF_ONE_CALL: tuple[Any, ...] = (
    NormalizeTransposePass,
    ReplaceBrokenOpsWithFunctionalOpsPass,
    ScalarToTensorPass,
    SymToTensorPass,
)
_AllAtOnce = type("_AllAtOnce", _OF_ONE_CALL, {})  # where the base class of each is the next one
_one_at_a_time = threading.RLock()  # ExecuTorch is not made for threads, and two would not put back what it had


@contextmanager
def retraced_once() -> Iterator[None]:
    """Has ExecuTorch run those of its passes in one retrace in the block, in one thread at a time.

    Torch, which lists its composite ops for each of 40 namespaces anew, a tenth of the time, lists them once.
    """
    with _one_at_a_time:
        passes_of, list_ops = _program._get_aten_to_edge_passes, torch_export._materialize_cpp_cia_ops
        try:
            _program._get_aten_to_edge_passes = lambda config: _merged(*passes_of(config))
            torch_export._materialize_cpp_cia_ops = cache(list_ops)
            yield
        finally:
            _program._get_aten_to_edge_passes = passes_of
            torch_export._materialize_cpp_cia_ops = list_ops


def _merged(before: Passes, after: Passes) -> tuple[Passes, Passes]:
    others = [each for each in before if not _looks_at_one_call(each)]
    first = next((at for at, each in enumerate(before) if _looks_at_one_call(each)), 0)
    return [*others[:first], _AllAtOnce(), *others[first:]], after


def _looks_at_one_call(each: Callable[..., Any]) -> bool:
    return type(getattr(each, "__wrapped__", each)) in _OF_ONE_CALL
