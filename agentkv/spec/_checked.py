"""Validates the drafts of users' strategies before the engine gets them: up to `limit` nodes, in one pass."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from .._types.checks import call_it
from .._types.errors import InvalidInput
from .._types.show import preview
from ._built_in import BuiltIn
from .strategy import Draft

if TYPE_CHECKING:
    from .strategy import Strategy

T = TypeVar("T")
_LEAST_CONFIDENCE = float(np.finfo(np.float32).tiny)  # the engine holds float32, in which smaller ones are 0


def checked_single(speculative: object) -> BuiltIn | Strategy:
    """Returns a strategy that is not made of others. Raises InvalidInput for anything else."""
    if isinstance(speculative, BuiltIn):
        return speculative
    propose = getattr(speculative, "propose", None)
    if isinstance(speculative, type):
        if callable(propose) or issubclass(speculative, BuiltIn):
            raise InvalidInput(f"speculative is the class {speculative.__name__}{call_it(speculative)}")
    elif callable(propose):
        if inspect.iscoroutinefunction(propose):
            raise InvalidInput(
                f"{type(speculative).__name__}.propose is a coroutine function, but the step loop calls it between two "
                "forwards; make it a plain function"
            )
        return cast("Strategy", speculative)
    raise InvalidInput(
        f"speculative is {preview(speculative)}, but it must be None, a strategy such as kv.spec.Suffix(), several as "
        "kv.spec.Mixed(...), or an object with `propose` (see kv.spec and kv.spec.Strategy)"
    )


class CheckedStrategy:
    """A strategy whose drafts are valid trees of vocabulary tokens with at most `limit` nodes."""

    def __init__(self, strategy: Strategy, vocab_size: int) -> None:
        self._strategy = strategy
        self._vocab_size = vocab_size
        self.observe = getattr(strategy, "observe", None)

    def propose(self, branch: int, tokens: NDArray[np.int32], limit: int) -> Draft | None:
        """The strategy's draft, checked. Raises InvalidInput for an invalid one."""
        answer = self._strategy.propose(branch, tokens, limit)
        return None if answer is None else checked_draft(answer, self._vocab_size, limit)


def checked(strategy: Strategy, vocab_size: int) -> CheckedStrategy:
    """Wraps a strategy to check its drafts. The wrapper's class has the name of the strategy's, for the engine's
    errors."""
    named: type[CheckedStrategy] = type(type(strategy).__name__, (CheckedStrategy,), {})
    return named(strategy, vocab_size)


def checked_draft(answer: Any, vocab_size: int, limit: int) -> Draft:
    """The first `limit` nodes of a draft; no others are read. Raises InvalidInput unless they are a tree of tokens."""
    if not all(hasattr(answer, name) for name in ("tokens", "parents", "confidence")):
        raise InvalidInput(f"it returned {preview(answer)}, but it must return None or a kv.spec.Draft")
    _check_lengths(answer)
    tokens, parents = _ints(answer.tokens, "tokens", limit), _ints(answer.parents, "parents", limit)
    confidence = None if answer.confidence is None else _floats(answer.confidence, limit)
    if len(parents) != len(tokens) or (confidence is not None and len(confidence) != len(tokens)):
        raise _unequal(len(tokens), len(parents), 0 if confidence is None else len(confidence))
    _check_tokens(tokens, vocab_size)
    _check_parents(parents)
    _check_siblings(tokens, parents)
    for node, value in enumerate(confidence or ()):
        if not 0 < value <= 1:
            raise InvalidInput(f"node {node} of the draft has confidence {value}, but it must be above 0 and at most 1")
    if confidence is not None:
        confidence = [max(value, _LEAST_CONFIDENCE) for value in confidence]
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), confidence)


def _check_lengths(answer: Any) -> None:
    """Compares the lengths of the whole draft, where they are known without reading the nodes."""
    given = (answer.tokens, answer.parents, answer.confidence)
    tokens, parents, confidences = (len(each) if isinstance(each, Sized) else None for each in given)
    if len({tokens, parents, confidences} - {None}) > 1:
        raise _unequal(tokens, parents, confidences)


def _unequal(tokens: int | None, parents: int | None, confidences: int | None) -> InvalidInput:
    return InvalidInput(
        f"the draft has {tokens} tokens, {parents} parents and {confidences or 0} confidences, but needs one of each "
        "per node"
    )


def _check_tokens(tokens: list[int], vocab_size: int) -> None:
    for node, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise InvalidInput(f"node {node} of the draft is token {token}, but ids are from 0 to {vocab_size - 1}")


def _check_parents(parents: list[int]) -> None:
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise InvalidInput(
                f"node {node} of the draft has parent {parent}, but it must be from -1 to {node - 1}: an earlier node, "
                "or -1 for the branch's last token"
            )


def _check_siblings(tokens: list[int], parents: list[int]) -> None:
    first: dict[tuple[int, int], int] = {}
    for node, place in enumerate(zip(parents, tokens, strict=True)):
        other = first.setdefault(place, node)
        if other != node:
            parent, token = place
            raise InvalidInput(
                f"nodes {other} and {node} of the draft are both token {token} after node {parent}: keep one of them"
            )


def _ints(values: Iterable[Any], what: str, limit: int) -> list[int]:
    numbers = []
    for node, value in enumerate(_first(values, what, limit)):
        try:
            numbers.append(operator.index(value))
        except TypeError:
            raise InvalidInput(
                f"{what} of the draft have {preview(value)} for node {node}, but it must be an int"
            ) from None
    return numbers


def _floats(values: Iterable[Any], limit: int) -> list[float]:
    numbers = []
    for node, value in enumerate(_first(values, "confidences", limit)):
        try:
            numbers.append(float(value))
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(
                f"confidences of the draft have {preview(value)} for node {node}, but it must be a number"
            ) from None
    return numbers


def _first(values: Iterable[T], what: str, limit: int) -> list[T]:
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{what} of the draft are {preview(values)}, but they must be one for each node")
    return list(islice(values, limit))
