"""The vocabulary of a GGUF file: checked access to its keys under `tokenizer.ggml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeVar

from agentkv_runtime.errors import TokenizerError

__all__ = ["TokenType", "Vocabulary"]

_T = TypeVar("_T")
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # where a file names none
_AGAIN = "Convert the model again, or download another file of it"


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """Tokens with their types, scores and merges. Methods raise TokenizerError for missing or wrong keys."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(self._list("tokens", str))]
        """Text of each id; empty ones get a name as in llama.cpp."""
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            again = next(i for i, token in enumerate(self.tokens) if self.ids[token] != i)
            token = self.tokens[again]
            raise TokenizerError(f"ids {again} and {self.ids[token]} are the same token, {token[:40]!r}. {_AGAIN}")

    @cached_property
    def types(self) -> list[TokenType]:
        """Type of each token."""
        kinds = self._each("token_type", int)
        known = {int(kind): kind for kind in TokenType}
        wrong = next((i for i, kind in enumerate(kinds) if kind not in known), None)
        if wrong is not None:
            raise TokenizerError(
                f"tokenizer.ggml.token_type of id {wrong} is {kinds[wrong]}, and must be from 0 to {max(TokenType)}. "
                f"{_AGAIN}"
            )
        return [known[kind] for kind in kinds]

    def flag(self, name: str) -> bool | None:
        """A boolean setting; None if the file lacks it."""
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is not None and not isinstance(value, bool):
            raise TokenizerError(f"tokenizer.ggml.{name} is {value!r:.40}, and must be true or false. {_AGAIN}")
        return value

    def id(self, name: str) -> int | None:
        """A named id, such as `bos`, or SentencePiece's default for it; None without either."""
        default = _SENTENCEPIECE_IDS.get(name) if self._metadata.get("tokenizer.ggml.model") == "llama" else None
        key, size = f"tokenizer.ggml.{name}_token_id", len(self.tokens)
        value = self._metadata.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            raise TokenizerError(f"{key} is {value!r:.40}, and ids are from 0 to {size - 1}. {_AGAIN}")
        return value

    @cached_property
    def scores(self) -> Sequence[float]:
        """Score of each token."""
        return self._each("scores", float, int)

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """Pairs of tokens that merge into one, the earliest first."""
        ids = self.ids
        pairs: dict[tuple[str, str], None] = {}
        for i, merge in enumerate(self._list("merges", str)):
            one, _, other = merge[1:].partition(" ")  # a token may begin with a space
            one = merge[0:1] + one
            if not (one in ids and other in ids and one + other in ids):
                raise TokenizerError(
                    f"entry {i} of tokenizer.ggml.merges is {merge!r:.60}, and must be two tokens that make a third, "
                    f"with a space between them. {_AGAIN}"
                )
            pairs.setdefault((one, other))
        return list(pairs)

    def _list(self, name: str, *kinds: type[_T]) -> list[_T]:
        key = f"tokenizer.ggml.{name}"
        values = self._metadata.get(key)
        what = " or ".join(kind.__name__ for kind in kinds)
        if not values:
            raise TokenizerError(f"{key} is missing or empty: without it there is no tokenizer. {_AGAIN}")
        if not isinstance(values, list) or type(values[0]) not in kinds:
            raise TokenizerError(f"{key} is no list of {what}: it is {values!r:.40}. {_AGAIN}")
        return values

    def _each(self, name: str, *kinds: type[_T]) -> list[_T]:
        """A list with one value per token."""
        values = self._list(name, *kinds)
        if len(values) != len(self.tokens):
            raise TokenizerError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {len(self.tokens)} tokens, and must have one for "
                f"each. {_AGAIN}"
            )
        return values
