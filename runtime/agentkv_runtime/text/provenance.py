"""Which characters of a rendered conversation came from its content, and which the template wrote.

A template is run once with the content as it is, and once more with some characters of it exchanged, one for one, for
stand-ins that occur nowhere else. What is a stand-in in the second text is content in the first. `Masked` text
compares, splits and searches as what it stands for, so that the template takes the same course both times; where it
does not (it may lose the class on the way), the stand-ins are still there.
"""
# ruff: noqa: D102 - what the methods of str do

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

__all__ = ["STAND_INS", "Masked", "joined", "masked_kind"]

# Signs without case or other forms, which normalizers leave alone: letters (Tangut) for what may be part of a word,
# symbols (Braille, then private use) for the rest. Some tokens are only tokens at the border of a word.
_LETTERS = range(0x17000, 0x187F8)
_SYMBOLS = (range(0x2801, 0x2900), range(0x100000, 0x10FFFE))
STAND_INS = re.compile(f"[{''.join(f'{chr(r[0])}-{chr(r[-1])}' for r in (_LETTERS, *_SYMBOLS))}]")


class Masked(str):
    """Text some of whose characters are exchanged for stand-ins. `masked_kind` makes the class for one alphabet."""

    __slots__ = ()
    _there: ClassVar[dict[int, int]] = {}
    _back: ClassVar[dict[int, int]] = {}

    @classmethod
    def cover(cls, value: Any) -> Any:
        """A copy of a str, mapping (keys too), list or tuple in which stand-ins replace the alphabet's characters."""
        if isinstance(value, Masked):
            return value
        if isinstance(value, str):
            return cls(value.translate(cls._there))
        return _copied(value, cls.cover)

    @classmethod
    def bare(cls, value: Any) -> Any:
        """A copy of such a value in which the original characters replace stand-ins; the inverse of `cover`."""
        return value.translate(cls._back) if isinstance(value, str) else _copied(value, cls.bare)

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        return hash(self.bare(self))

    def __add__(self, other: str) -> Masked:
        return type(self)(str.__add__(self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Masked:
        return type(self)(str.__add__(other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: Any) -> Masked:
        return type(self)(str.__mul__(self, times))

    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> Masked:
        return type(self)(str.__getitem__(self, key))

    def __iter__(self) -> Any:
        return map(type(self), str.__iter__(self))

    def join(self, parts: Iterable[str]) -> str:
        return joined([piece for part in parts for piece in (self, part)][1:])

    def strip(self, characters: str | None = None) -> Masked:
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None) -> Masked:
        return self[len(self) - len(self.bare(self).lstrip(self._argument(characters))) :]

    def rstrip(self, characters: str | None = None) -> Masked:
        return self[: len(self.bare(self).rstrip(self._argument(characters)))]

    def removeprefix(self, prefix: str) -> Masked:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> Masked:
        return self[: -len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: int = -1) -> list[Masked]:  # type: ignore[override]
        return self._cut(self.bare(self).split(self._argument(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: int = -1) -> list[Masked]:  # type: ignore[override]
        return self._cut(self.bare(self).rsplit(self._argument(sep), maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Masked]:  # type: ignore[override]
        return self._cut(self.bare(self).splitlines(keepends), None)

    def partition(self, sep: str) -> tuple[Masked, ...]:  # type: ignore[override]
        return tuple(self._cut(self.bare(self).partition(self._argument(sep)), ""))

    def rpartition(self, sep: str) -> tuple[Masked, ...]:  # type: ignore[override]
        return tuple(self._cut(self.bare(self).rpartition(self._argument(sep)), ""))

    def replace(self, old: str, new: str, count: int = -1) -> str:  # type: ignore[override]
        if not old:
            made: str = self.cover(self.bare(self).replace("", self.bare(new), count))
            return made
        return joined([piece for part in self.split(old, count) for piece in (new, part)][1:])

    def _argument(self, value: Any) -> Any:
        return self.bare(value) if isinstance(value, str | tuple) else value

    def _cut(self, parts: Sequence[str], sep: str | None) -> list[Masked]:
        """Slices of this text where `parts` are in its bare text, with `sep` (None: white space) between them."""
        bare, found, start = self.bare(self), [], 0
        for part in parts:
            start = bare.index(part, start) if sep is None else start
            found.append(self[start : start + len(part)])
            start += len(part) + len(sep or "")
        return found


def _asked(name: str) -> Callable[..., Any]:
    def ask(self: Masked, *args: Any) -> Any:
        return getattr(self.bare(self), name)(*map(self._argument, args))

    return ask


def _recased(name: str) -> Callable[..., Any]:
    def recase(self: Masked) -> Any:
        made = getattr(self.bare(self), name)()
        if len(made) != len(self):
            return self.cover(made)
        pairs = zip(str.__iter__(self), made, strict=True)
        return type(self)("".join(self.cover(new) if ord(own) in self._back else new for own, new in pairs))

    return recase


for _name in (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "startswith", "endswith"),
    *("find", "rfind", "index", "rindex", "count", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit"),
    *("isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper"),
):
    setattr(Masked, _name, _asked(_name))
for _name in ("upper", "lower", "capitalize", "title", "swapcase", "casefold"):
    setattr(Masked, _name, _recased(_name))


def masked_kind(alphabet: Collection[str], taken: Collection[str]) -> type[Masked]:
    """A subclass of Masked with a stand-in for each character of `alphabet`, none of them in `taken`.

    Raises ValueError where too few characters are left.
    """
    letters = (sign for sign in _LETTERS if chr(sign) not in taken)
    symbols = (sign for sign in chain(*_SYMBOLS) if chr(sign) not in taken)
    there: dict[int, int] = {}
    for character in sorted(alphabet):
        stand_in = next(letters if re.match(r"\w", character) else symbols, None)
        if stand_in is None:
            raise ValueError(f"the text has too many different characters to tell {len(alphabet)} of them apart")
        there[ord(character)] = stand_in
    return type("Masked", (Masked,), {"__slots__": (), "_there": there, "_back": {v: k for k, v in there.items()}})


def joined(parts: Sequence[str]) -> str:
    """The concatenated parts; Masked if one of them is."""
    text = "".join(parts)
    kind = next((type(part) for part in parts if isinstance(part, Masked)), None)
    return text if kind is None else kind(text)


def _copied(value: Any, each: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {each(key): each(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(each, value))
    return value
