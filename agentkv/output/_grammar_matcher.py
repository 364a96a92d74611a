"""Matchers of grammars, by llguidance (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from ._llguidance import llguidance
from ._matcher import ConstraintFailed, DraftTreeWalk, Growth, Masks, Matcher, grow
from ._numbers import NumberTokens, digits_left, most_digits

if TYPE_CHECKING:
    import numpy as np
    from agentkv_runtime.text.tokenizer import Tokenizer
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

_KNOWN_TEXTS = 1024  # texts whose tokens are cached
_AROUND_DIGITS = 16  # sign, point and exponent of a number, and what is before it
_MOST_WAYS = 50_000  # to continue at one position: an object takes four for each optional property


class GrammarVocabulary:
    """The model's vocabulary in llguidance's form.

    It has one token more than the model: the end token of a model that has none.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        library = llguidance()
        # Forced text is much the same each time. It is plain text: a grammar names control tokens as such.
        encode = lru_cache(maxsize=_KNOWN_TEXTS)(partial(tokenizer.encode, parse_special=False))

        class Encoder:
            eos_token_id = (tokenizer.eos_ids or [vocab_size])[0]
            bos_token_id = None
            tokens = (*tokenizer.token_bytes(vocab_size)[:vocab_size], b"")
            special_token_ids = (*(i for i in tokenizer.special_ids if i < vocab_size), vocab_size)

            def __call__(self, text: bytes | str) -> list[int]:
                return encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)

        self.size = vocab_size
        self.tokens = Encoder.tokens
        self.eos = frozenset(tokenizer.eos_ids)
        self.native: LLTokenizer = library.LLTokenizer(
            library.TokenizerWrapper(Encoder()),
            n_vocab=vocab_size + 1,
            eos_token=[i for i in tokenizer.eos_ids if i < vocab_size] or vocab_size,
        )

    @cached_property
    def numbers(self) -> NumberTokens:
        """Tokens that continue a number."""
        return NumberTokens([b"" if i in self.eos else token for i, token in enumerate(self.tokens[: self.size])])

    def bytes_of(self, tokens: list[int]) -> bytes:
        """Concatenated bytes of tokens."""
        return b"".join(self.tokens[token] for token in tokens)


class GrammarRule:
    """A compiled grammar. Raises ValueError with llguidance's reason for an invalid one."""

    def __init__(self, grammar: str, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._digits = most_digits(grammar)
        library = llguidance()
        limits = library.LLParserLimits(max_items_in_row=_MOST_WAYS)
        self._first: LLMatcher = library.LLMatcher(vocabulary.native, grammar, log_level=0, limits=limits)
        if self._first.is_error():
            raise ValueError(self._first.get_error())

    def begin(self) -> Matcher:
        """Makes the matcher of a new output. Matchers share the lexer states that they compute."""
        return GrammarState(self._first.deep_copy(), self._vocabulary, self._digits)

    def end(self, state: Any) -> None:
        """Does nothing: no state outlives a generation."""


class GrammarState:
    """Matcher of a grammar in one generation.

    The llguidance matcher only advances: after a `rollback` or `reset`, llguidance 1.9 computes masks from parse rows
    of the text that was taken back.
    """

    __slots__ = ("_digits", "_last", "_vocabulary", "matcher")

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary, digits: int | None) -> None:
        self.matcher = matcher
        self._vocabulary = vocabulary
        self._digits = digits  # most digits of a number; None for a grammar without JSON
        self._last = b""  # last bytes of the output, as far back as a number may reach

    def advance(self, tokens: list[int]) -> None:
        """Advances by generated tokens. Raises ConstraintFailed for tokens that the grammar does not allow."""
        if not self.matcher.consume_tokens(tokens):
            raise ConstraintFailed(_reason(self.matcher))
        if self._digits is not None:
            self._last = (self._last + self._vocabulary.bytes_of(tokens))[-2 * self._digits - _AROUND_DIGITS :]

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.matcher.is_stopped()

    def forced(self, most: int) -> list[int]:
        """Up to `most` next tokens of which each is the only one that its mask allows."""
        return _forced(self.matcher, most)

    def grow(self, tokens: list[int], parents: list[int], most: int) -> Growth:
        """Fits a draft to the grammar, with up to `most` nodes added."""
        return grow(_MatcherCursor(self.matcher, self._vocabulary), tokens, parents, most)

    def fill_masks(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets the bits of the allowed tokens: row 0 for the current position, row 1 + i after draft node i."""
        self._fill_row(self.matcher, masks, 0, [])
        beyond = _MatcherCursor(self.matcher, self._vocabulary)
        for node in DraftTreeWalk(beyond, tokens, parents).visit():
            self._fill_row(beyond.matcher, masks, 1 + node, beyond.path)

    def _fill_row(self, matcher: LLMatcher, masks: Masks, row: int, path: list[int]) -> None:
        size = self._vocabulary.size
        if matcher.is_stopped():
            masks[row, size // 32] = 1 << size % 32
            return
        stride = masks.strides[0]
        matcher.unsafe_compute_mask_ptr(masks.ctypes.data + row * stride, stride)
        masks[row, size // 32] &= ~(1 << size % 32) & 0xFFFFFFFF  # the end, or part of any control token
        if matcher.is_error():
            raise ConstraintFailed(_reason(matcher))
        if self._digits is None:
            return
        left = digits_left(self._last + self._vocabulary.bytes_of(path), self._digits)
        if left is not None:
            self._end_number(matcher, masks[row], left)

    def _end_number(self, matcher: LLMatcher, mask: NDArray[np.uint32], left: int) -> None:
        ended, size = self._vocabulary.numbers.without_more(mask, left), self._vocabulary.size
        if ended.any():  # else nothing but digits may come, as the schema wants it
            mask[:] = ended
        elif matcher.is_accepting():  # of a model without an end token
            mask[:] = 0
            mask[size // 32] = 1 << size % 32


class _MatcherCursor:
    """A copy of a matcher that walks the nodes of a draft; after a step back it is copied anew."""

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self._first = matcher
        self._vocabulary = vocabulary
        self.path: list[int] = []
        self._moved: LLMatcher | None = None  # advanced by the path; None: to be copied

    @property
    def matcher(self) -> LLMatcher:
        """Matcher advanced by the path."""
        if self._moved is None:
            self._moved = self._first.deep_copy()
            self._moved.consume_tokens(self.path)
        return self._moved

    def step(self, token: int) -> bool:
        """Advances by a token. Returns False, and stays, if it is not allowed."""
        if self.matcher.try_consume_tokens([token]) != 1:
            return False
        self.path.append(token)
        return True

    def back(self, n: int) -> None:
        """Undoes the last n steps."""
        del self.path[len(self.path) - n :]
        self._moved = None

    def forced(self, most: int) -> list[int]:
        """Up to `most` next tokens of which each is the only one that its mask allows."""
        return _forced(self.matcher, most)

    def ends(self, token: int) -> bool:
        """Returns whether this is an end token of the model."""
        return token in self._vocabulary.eos

    def may_end(self) -> bool:
        """Returns whether the output may end here."""
        return self.matcher.is_accepting()


def _forced(matcher: LLMatcher, most: int) -> list[int]:
    tokens: list[int] = matcher.compute_ff_tokens()[:most] if most else []
    return tokens


def _reason(matcher: LLMatcher) -> str:
    lines = matcher.get_error().splitlines()
    return lines[0] if lines else "it cannot be followed by what was said"
