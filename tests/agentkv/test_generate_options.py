"""The options of a generation are spelled in a few places for their readers; all are held to the one dataclass."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import agentkv as kv
from agentkv._context.branch import How
from agentkv._model.generate_options import GenerateOptions

DERIVED = {"seed"}  # drawn, or taken from the sampling
GIVEN = {field.name for field in fields(GenerateOptions)} - DERIVED
OWN = {
    kv.Branch.generate: {"self", "output", "output_retries"},
    kv.Branch.stream: {"self", "output", "buffer", "keep"},
    GenerateOptions.checked: set(),
}


@pytest.mark.parametrize("spelled", OWN, ids=lambda spelled: spelled.__qualname__)
def test_each_spelling_has_every_option(spelled: Any) -> None:
    assert set(inspect.signature(spelled).parameters) - OWN[spelled] == GIVEN


def test_so_have_the_keywords_of_type_checkers() -> None:
    assert set(How.__annotations__) == GIVEN


def test_other_draws_follow_from_the_attempt() -> None:
    greedy = GenerateOptions.checked().for_attempt(2)
    assert (greedy.sampling.temperature, greedy.seed) == (1.0, 2)
    drawn = GenerateOptions.checked(sampling=kv.Sampling(temperature=0.5, seed=2**63 - 1)).for_attempt(1)
    assert (drawn.sampling.temperature, drawn.seed) == (0.5, 0)
