"""Sampling parameters are checked where they are made."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core

import agentkv as kv
from agentkv._types.sampling import native_sampling

NATIVE = [name for name in kv.Sampling.model_fields if name != "seed"]
DEFAULTS = {name: kv.Sampling.model_fields[name].default for name in NATIVE} | {"logit_bias": {}}
OTHERS = {float: 0.5, int: 2, dict: {3: 1.5}}


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": float("nan")},
        {"logit_bias": {3: 101}},
        {"logit_bias": {-1: 1}},
        {"logit_bias": {"3": 1}},
        {"logit_bias": [3, 1]},
        {"seed": -1},
        {"seed": 2**63},
        {"seed": "x"},
        {"top_q": 0.5},
    ],
)
def test_out_of_range_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput, match=next(iter(bad))):
        kv.Sampling(**bad)


def test_it_is_frozen_and_comparable() -> None:
    sampling = kv.Sampling(temperature=1, seed=3)
    assert sampling == kv.Sampling(temperature=1.0, seed=3)
    with pytest.raises(ValueError, match="frozen"):
        sampling.temperature = 2.0  # type: ignore[misc]


def test_a_bias_is_its_own_and_hashable() -> None:
    given = {3: 1, 5: -100.0}
    sampling = kv.Sampling(logit_bias=given)
    given[4] = 1
    assert sampling.logit_bias == {3: 1.0, 5: -100.0}
    assert sampling == kv.Sampling(logit_bias=MappingProxyType({5: -100, 3: 1}))
    assert {sampling, kv.Sampling(logit_bias={5: -100, 3: 1}), kv.Sampling(), kv.Sampling()} == {
        sampling,
        kv.Sampling(),
    }


def test_a_seed_is_drawn_only_where_something_is_drawn() -> None:
    assert kv.Sampling().drawn_seed() is None
    assert kv.Sampling(seed=5).drawn_seed() == 5
    drawn = {kv.Sampling(temperature=1).drawn_seed() for _ in range(8)}
    assert len(drawn) == 8
    assert None not in drawn


def fields(native: _core.Sampling) -> dict[str, Any]:
    return {name: getattr(native, name) for name in dir(native) if not name.startswith("_")}


def test_the_native_fields_and_defaults_are_the_same() -> None:
    assert fields(_core.Sampling()) == DEFAULTS
    assert fields(native_sampling(kv.Sampling(seed=3))) == DEFAULTS


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_field_arrives(name: str) -> None:
    other = OTHERS[type(DEFAULTS[name])]
    assert fields(native_sampling(kv.Sampling(**{name: other}))) == {**DEFAULTS, name: other}


AT_BOUNDS: dict[type, tuple[Any, ...]] = {
    float: (-2.5, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 2.5, float("nan"), float("inf")),
    int: (-1, 0, 1),
    dict: ({-1: 0.0}, {0: -100.0}, {3: 100.0}, {3: 100.5}, {1: 0.0, 2: float("nan")}),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, default in DEFAULTS.items() for value in AT_BOUNDS[type(default)]],
)
def test_the_native_bounds_are_the_same(name: str, value: Any) -> None:
    """The step loop checks for itself, in the same way."""
    native = _core.Sampling(**{name: value})
    try:
        kv.Sampling(**{name: value})
    except kv.InvalidInput:
        with pytest.raises(_core.InvalidSampling, match=name):
            generate(native)
    else:
        assert len(generate(native)) == 3


def generate(sampling: _core.Sampling) -> list[int]:
    """What an engine over a flat model samples."""
    cells = _core.Cells(8)

    def forward(tokens: Any, positions: Any, wanted: Any) -> Any:
        cells.plan(positions)
        return np.zeros((len(wanted), 4), np.float32)

    program = _core.PythonRunner(forward, vocab_size=4, max_tokens=4, max_logits=4)
    engine = _core.Engine(program, cells, token_bytes=[b"x"] * 4, eos_ids=[], special_ids=[])
    branch, _ = engine.create()
    engine.extend(branch, [1, 2])
    engine.step()
    engine.generate(branch, _core.GenerateOptions(max_tokens=3, sampling=sampling))
    while not (finished := engine.step().finished):
        pass
    assert finished[0].error is None
    return finished[0].tokens
