"""What strategies of users propose, looked at before the engine sees it: as much as there is room for, in one pass."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._types.errors import InvalidInput
from .._types.show import shown
from .strategy import Draft

if TYPE_CHECKING:
    from .strategy import Strategy

T = TypeVar("T")


class Checked:
    """A strategy whose drafts are trees of tokens of the vocabulary, with no more nodes than there is room for."""

    def __init__(self, strategy: Strategy, vocab_size: int) -> None:
        self._strategy = strategy
        self._vocab_size = vocab_size
        self.observe = getattr(strategy, "observe", None)

    def propose(self, branch: int, tokens: NDArray[np.int32], limit: int) -> Draft | None:
        """What the strategy proposes. Raises InvalidInput for what is no draft."""
        answer = self._strategy.propose(branch, tokens, limit)
        return None if answer is None else checked_draft(answer, self._vocab_size, limit)


def checked(strategy: Strategy, vocab_size: int) -> Checked:
    """The strategy, its drafts checked. It has the name of the strategy's class, which errors of the engine say."""
    named: type[Checked] = type(type(strategy).__name__, (Checked,), {})
    return named(strategy, vocab_size)


def checked_draft(answer: Any, vocab_size: int, limit: int) -> Draft:
    """The first nodes of a draft. Raises InvalidInput where they are no tree of tokens; no others are looked at."""
    if not all(hasattr(answer, name) for name in ("tokens", "parents", "confidence")):
        raise InvalidInput(f"it returned {shown(answer)}, but it must return None or a kv.spec.Draft")
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
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), confidence)


def _check_lengths(answer: Any) -> None:
    """Of all of it, where that can be told without a look at the nodes."""
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
                f"{what} of the draft have {shown(value)} for node {node}, but it must be an int"
            ) from None
    return numbers


def _floats(values: Iterable[Any], limit: int) -> list[float]:
    numbers = []
    for node, value in enumerate(_first(values, "confidences", limit)):
        try:
            numbers.append(float(value))
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(
                f"confidences of the draft have {shown(value)} for node {node}, but it must be a number"
            ) from None
    return numbers


def _first(values: Iterable[T], what: str, limit: int) -> list[T]:
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{what} of the draft are {shown(values)}, but they must be one for each node")
    return list(islice(values, limit))
