"""How a model of transformers is written as a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.runtime.gguf.transforms import Transform, as_it_is


@dataclass(frozen=True)
class Written:
    """An architecture: which model, and what becomes of it."""

    name: str
    """llama.cpp's."""
    config: Mapping[str, Any]
    """Beside SHAPE."""
    transform: Transform = as_it_is
    keys: Mapping[str, Any | Callable[[Any], Any]] = field(default_factory=dict)
    """Beside the common ones, below the architecture's name; functions are of the config, None takes one away."""
    head_dim: bool = True
    """Does the config say how long heads are?"""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """What the file does not say, and what the description says instead."""


def named(name: str) -> Callable[[Any], Any]:
    return lambda config: getattr(config, name)


def turned(config: Any) -> int:
    return int(config.rope_parameters["partial_rotary_factor"] * 16)


def windows(config: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]
