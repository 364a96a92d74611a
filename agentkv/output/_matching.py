"""Grammars, followed by llguidance (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ._state import ConstraintFailed, Masks, State, Walk

if TYPE_CHECKING:
    from agentkv_runtime.tokenizer import Tokenizer
    from llguidance import LLMatcher, LLTokenizer

_KNOWN_TEXTS = 1024  # whose tokens are remembered


class GrammarVocabulary:
    """The model's tokens as llguidance takes them.

    One more token than the model has stands behind them: the end of a model without an end token.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        # What is forced is much the same each time. It is text: tokens of their own the grammar names as such.
        encode = lru_cache(maxsize=_KNOWN_TEXTS)(partial(tokenizer.encode, parse_special=False))

        class Encoder:
            eos_token_id = (tokenizer.eos_ids or [vocab_size])[0]
            bos_token_id = None
            tokens = (*tokenizer.token_bytes(vocab_size)[:vocab_size], b"")
            special_token_ids = (*(i for i in tokenizer.special_ids if i < vocab_size), vocab_size)

            def __call__(self, text: bytes | str) -> list[int]:
                return encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)

        self.size = vocab_size
        self.eos = frozenset(tokenizer.eos_ids)
        self.native: LLTokenizer = LLTokenizer(
            TokenizerWrapper(Encoder()),
            n_vocab=vocab_size + 1,
            eos_token=[i for i in tokenizer.eos_ids if i < vocab_size] or vocab_size,
        )


class GrammarRule:
    """A compiled grammar. Raises ValueError with llguidance's reason where it is none."""

    def __init__(self, grammar: str, vocabulary: GrammarVocabulary) -> None:
        from llguidance import LLMatcher

        self._vocabulary = vocabulary
        self._first = LLMatcher(vocabulary.native, grammar, log_level=0)
        if self._first.is_error():
            raise ValueError(self._first.get_error())

    def begin(self) -> State:
        """The state of an output that begins. What copies learn of lexemes, they share."""
        return GrammarState(self._first.deep_copy(), self._vocabulary)

    def end(self, state: Any) -> None:
        """A generation is over."""


class GrammarState:
    """What a grammar has come to in one generation.

    Its matcher only ever goes on. Once it was taken back, by `rollback` or `reset`, llguidance 1.9 computes masks from
    rows of its parse that were another text's.
    """

    __slots__ = ("_vocabulary", "matcher")

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self.matcher = matcher
        self._vocabulary = vocabulary

    def say(self, tokens: list[int]) -> None:
        """Goes on by tokens that were said."""
        if not self.matcher.consume_tokens(tokens):
            raise ConstraintFailed(_reason(self.matcher))

    @property
    def complete(self) -> bool:
        """May nothing but the end follow?"""
        return self.matcher.is_stopped()

    def forced(self, most: int) -> list[int]:
        """The only tokens that may follow, as the masks then say as well."""
        return self.matcher.compute_ff_tokens()[:most] if most else []

    def allowed(self, tokens: list[int], parents: list[int]) -> list[int]:
        """The nodes that may follow. The end may where the output may end; nothing follows it."""
        walk = Walk(_Beyond(self.matcher, self._vocabulary), tokens, parents)
        return sorted([*walk.visit(), *walk.ends])

    def fill(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets the bits of what may follow, first here, then after each node."""
        self._fill_row(self.matcher, masks, 0)
        beyond = _Beyond(self.matcher, self._vocabulary)
        for node in Walk(beyond, tokens, parents).visit():
            self._fill_row(beyond.matcher, masks, 1 + node)

    def _fill_row(self, matcher: LLMatcher, masks: Masks, row: int) -> None:
        size = self._vocabulary.size
        if matcher.is_stopped():
            masks[row, size // 32] = 1 << size % 32
            return
        stride = masks.strides[0]
        matcher.unsafe_compute_mask_ptr(masks.ctypes.data + row * stride, stride)
        masks[row, size // 32] &= ~(1 << size % 32) & 0xFFFFFFFF  # the end, or part of any control token
        if matcher.is_error():
            raise ConstraintFailed(_reason(matcher))


class _Beyond:
    """A matcher that is taken over the nodes of a draft: a copy, and where paths part another one."""

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self._first = matcher
        self._vocabulary = vocabulary
        self._path: list[int] = []
        self._moved: LLMatcher | None = None  # behind the path; None: to be made

    @property
    def matcher(self) -> LLMatcher:
        """Where it is."""
        if self._moved is None:
            self._moved = self._first.deep_copy()
            self._moved.consume_tokens(self._path)
        return self._moved

    def step(self, token: int) -> bool:
        """Goes on by a token, if it may come."""
        if self.matcher.try_consume_tokens([token]) != 1:
            return False
        self._path.append(token)
        return True

    def back(self, n: int) -> None:
        """Takes back the last n steps."""
        del self._path[len(self._path) - n :]
        self._moved = None

    def ends(self, token: int) -> bool:
        """Is it the model's end?"""
        return token in self._vocabulary.eos

    def may_end(self) -> bool:
        """May the output end here?"""
        return self.matcher.is_accepting()


def _reason(matcher: LLMatcher) -> str:
    lines = matcher.get_error().splitlines()
    return lines[0] if lines else "it cannot be followed by what was said"
