"""Checked access to a GGUF file's keys about its architecture, which records the keys that were read."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from agentkv_runtime.errors import GGUFError, UnsupportedModelError
from agentkv_runtime.gguf.file import GGUFFile

__all__ = ["Keys"]

_HARMLESS = {
    "vocab_size",
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "pooling_type",
    "attention.causal",
    # An architecture has one of the two; converters write both for some.
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
}
"""Keys that do not change what the model computes."""


_MOST = 1 << 30
"""Largest whole number; the sum of two still fits C's int."""


class Keys:
    """The keys below the architecture's name. Methods raise GGUFError for a value of the wrong type or range."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = file.metadata.get("general.architecture")
        self._read: set[str] = set()

    def value(self, key: str, default: Any = None) -> Any:
        """The raw value of a key, unchecked; `default` if it is missing."""
        self._read.add(key)
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 to 2^30. A list of equal numbers counts as that number."""
        value = self.value(key, default)
        if value is None:
            raise GGUFError(f"{self.file.path}: has no {self.architecture}.{key}. Convert the model again")
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                self.unsupported(f"{key} differs from layer to layer")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
            self._wrong(key, value, f"a whole number from 0 to {_MOST}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.value(key, default)
        if value is None:
            raise GGUFError(f"{self.file.path}: has no {self.architecture}.{key}. Convert the model again")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self._wrong(key, value, "a number")
        return float(value)

    def base(self, key: str, default: float) -> float:
        """The base of the frequencies of rotary positions: a number above 1."""
        value = self.number(key, default)
        if value <= 1:
            self._wrong(key, value, "above 1")
        return value

    def numbers(self, key: str, count: int) -> list[float]:
        """`count` numbers; the file may have one for all."""
        value = self.value(key)
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
            self._wrong(key, value, f"{count} numbers")
        return [float(each) for each in values]

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            self._wrong(key, value, "true or false")
        return value

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor of this name."""
        return tensor in self.file.tensors

    def check_all_read(self) -> None:
        """Raises UnsupportedModelError for a key that was not read and might change what the model computes."""
        prefix = f"{self.architecture}."
        for key, value in self.file.metadata.items():
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name not in self._read | _HARMLESS and value:
                self.unsupported(f"{key} is {value!r:.40}, which is not known of this architecture")

    def unsupported(self, why: str) -> NoReturn:
        """Raises UnsupportedModelError with the file's path and `why`."""
        raise UnsupportedModelError(
            f"{self.file.path}: GGUF files of {self.architecture} are not read where {why}. Export the Hugging Face "
            "folder that it was made from"
        )

    def _wrong(self, key: str, value: object, must_be: str) -> NoReturn:
        raise GGUFError(
            f"{self.file.path}: {self.architecture}.{key} is {value!r:.40}, and must be {must_be}. Convert it again"
        )
