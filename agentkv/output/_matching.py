"""Grammars, followed by llguidance (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ._state import ConstraintFailed, Masks, State, Walk

if TYPE_CHECKING:
    from agentkv_runtime.tokenizer import Tokenizer
    from llguidance import LLMatcher, LLTokenizer

_KNOWN_TEXTS = 1024  # whose tokens are remembered
_KEPT = 8  # matchers of a grammar that wait for another generation: what they have learnt of its lexemes stays


class GrammarVocabulary:
    """The model's tokens as llguidance takes them.

    One more token than the model has stands behind them: the end of a model without an end token.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        encode = lru_cache(maxsize=_KNOWN_TEXTS)(tokenizer.encode)  # what is forced is much the same each time

        class Encoder:
            eos_token_id = (tokenizer.eos_ids or [vocab_size])[0]
            bos_token_id = None
            tokens = (*tokenizer.token_bytes(vocab_size)[:vocab_size], b"")
            special_token_ids = (*(i for i in tokenizer.special_ids if i < vocab_size), vocab_size)

            def __call__(self, text: bytes | str) -> list[int]:
                return encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)

        self.size = vocab_size
        self.eos = frozenset(tokenizer.eos_ids)
        # Those that are text as well: what llguidance 1.9 takes back of one is its text, whatever it had counted it as.
        self.marks = frozenset(tokenizer.added_ids.values()) - set(tokenizer.special_ids)
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
        self._kept: list[LLMatcher] = []

    def begin(self) -> State:
        """The state of an output that begins."""
        return GrammarState(self._kept.pop() if self._kept else self._first.deep_copy(), self._vocabulary)

    def end(self, state: Any) -> None:
        """A generation is over: its matcher serves another."""
        if len(self._kept) < _KEPT and not state.marked and state.matcher.reset():
            self._kept.append(state.matcher)


class GrammarState:
    """What a grammar has come to in one generation."""

    __slots__ = ("_path", "_vocabulary", "marked", "matcher")

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self.matcher = matcher
        self.marked = False  # has it said a mark?
        self._vocabulary = vocabulary
        self._path: list[LLMatcher | None] = []  # of each step the matcher to go back to, if there is another

    def say(self, tokens: list[int]) -> None:
        """Goes on by tokens that were said."""
        self.marked = self.marked or not self._vocabulary.marks.isdisjoint(tokens)
        if not self.matcher.consume_tokens(tokens):
            raise ConstraintFailed(self._reason())

    @property
    def complete(self) -> bool:
        """May nothing but the end follow?"""
        return self.matcher.is_stopped()

    def forced(self, most: int) -> list[int]:
        """The only tokens that may follow, as the masks then say as well."""
        return self.matcher.compute_ff_tokens()[:most] if most else []

    def allowed(self, tokens: list[int], parents: list[int]) -> list[int]:
        """The nodes that may follow. The end may where the output may end; nothing follows it."""
        walk = Walk(self, tokens, parents)
        return sorted([*walk.visit(), *walk.ends])

    def fill(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets the bits of what may follow, first here, then after each node."""
        at, stride = masks.ctypes.data, masks.strides[0]
        self._fill_row(at, stride, masks, 0)
        for node in Walk(self, tokens, parents).visit():
            self._fill_row(at, stride, masks, 1 + node)
        if self.matcher.is_error():
            raise ConstraintFailed(self._reason())

    def step(self, token: int) -> bool:
        """Goes on by a token, if it may come."""
        before = self.matcher if token in self._vocabulary.marks else None
        matcher = before.deep_copy() if before else self.matcher
        if matcher.try_consume_tokens([token]) != 1:
            return False
        self.matcher = matcher
        self._path.append(before)
        return True

    def back(self, n: int) -> None:
        """Takes back the last n steps."""
        for before in reversed(self._path[-n:]):
            if before is None:
                self.matcher.rollback(1)
            else:
                self.matcher = before
        del self._path[-n:]

    def ends(self, token: int) -> bool:
        """Is it the model's end?"""
        return token in self._vocabulary.eos

    def may_end(self) -> bool:
        """May the output end here?"""
        return self.matcher.is_accepting()

    def _fill_row(self, at: int, stride: int, masks: Masks, row: int) -> None:
        size = self._vocabulary.size
        if self.matcher.is_stopped():
            masks[row, size // 32] = 1 << size % 32
            return
        self.matcher.unsafe_compute_mask_ptr(at + row * stride, stride)
        masks[row, size // 32] &= ~(1 << size % 32) & 0xFFFFFFFF  # the end, or part of any control token

    def _reason(self) -> str:
        lines = self.matcher.get_error().splitlines()
        return lines[0] if lines else "it cannot be followed by what was said"
