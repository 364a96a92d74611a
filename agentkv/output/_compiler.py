"""Constraints of a Context: compiled once, and advanced once per step for all generations together."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from .._documents.conversations import SavedOutput
from .._types.errors import InvalidInput
from .._types.show import preview, safe_str
from ._custom_matcher import CustomConstraint
from ._grammar_matcher import GrammarRule, GrammarVocabulary
from ._matcher import ConstraintFailed, Masks, Matcher, Rule
from ._thinking import ThinkingRule
from ._thought import Thought, parts_of
from .constraint import Constraint
from .grammar import GrammarSource

if TYPE_CHECKING:
    from agentkv_runtime.constraints import PythonConstraint
    from agentkv_runtime.engine import StoredBranch
    from agentkv_runtime.text.tokenizer import Tokenizer

    from .._engine.interface import StepEngine

Description: TypeAlias = GrammarSource[Any] | Constraint

_KEPT = 64  # compiled constraints that stay cached without a branch that needs them

Turn: TypeAlias = tuple[int, Rule | None, list[int], int]
Answer: TypeAlias = tuple[list[int], bool, str]
DraftTurn: TypeAlias = tuple[int, list[int], list[int], int]
DraftAnswer: TypeAlias = tuple[list[int], list[int], list[int], str]
MaskTurn: TypeAlias = tuple[int, list[int], list[int], Masks]


class ConstraintDriver:
    """Holds the matcher of each constrained generation and answers the engine's turns. Raises nothing."""

    def __init__(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._states: dict[int, Matcher] = {}

    def take_turns(self, turns: list[Turn], ended: list[int]) -> list[Answer]:
        """Advances each matcher by its new tokens, on the step loop's thread.

        Returns for each turn the forced tokens, whether the output is complete, and the fault.
        """
        for job in ended:
            self._end(job)
        return [self._answer(*turn) for turn in turns]

    def grow_drafts(self, turns: list[DraftTurn]) -> list[DraftAnswer]:
        """Fits drafts to the constraints, on the step loop's thread.

        Returns for each draft the allowed nodes, the tokens and parents of nodes to add, and the fault.
        """
        return [self._grown(*turn) for turn in turns]

    def fill_masks(self, turns: list[MaskTurn]) -> list[str]:
        """Fills the token masks of each turn; returns the faults, "" for none. On a thread beside the forward."""
        return [self._fill(*turn) for turn in turns]

    def _answer(self, job: int, rule: Rule | None, said: list[int], most: int) -> Answer:
        try:
            if rule is not None:
                self._rules[job] = rule
                self._states[job] = rule.begin()
            state = self._states[job]
            state.advance(said)
            if state.complete:
                return [], True, ""
            return state.forced(most), False, ""
        except BaseException as error:  # a user's object may raise anything, and other turns continue
            self._forget(job)
            return [], False, _reason(error)

    def _grown(self, job: int, tokens: list[int], parents: list[int], most: int) -> DraftAnswer:
        try:
            return *self._states[job].grow(tokens, parents, most), ""
        except BaseException as error:
            self._forget(job)
            return [], [], [], _reason(error)

    def _forget(self, job: int) -> None:
        self._rules.pop(job, None)
        self._states.pop(job, None)

    def _fill(self, job: int, tokens: list[int], parents: list[int], masks: Masks) -> str:
        try:
            self._states[job].fill_masks(tokens, parents, masks)
        except BaseException as error:
            return _reason(error)
        return ""

    def _end(self, job: int) -> None:
        rule, state = self._rules.pop(job, None), self._states.pop(job, None)
        if rule is not None and state is not None:
            rule.end(state)


class ConstraintCompiler:
    """Compiles and caches the constraints of one Context. All methods are thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._lock = threading.Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._driver: Any = None
        # Constraints of loaded branches, by the text of the grammar; alive as long as a branch continues with them.
        self._restored: weakref.WeakValueDictionary[str, PythonConstraint] = weakref.WeakValueDictionary()
        self._known: weakref.WeakValueDictionary[object, PythonConstraint] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[object, PythonConstraint] = OrderedDict()

    def for_generation(
        self, engine: StepEngine, branch: int, description: Description | None
    ) -> PythonConstraint | None:
        """Compiled constraint for a generation that begins on the branch; None without one. On the engine's thread."""
        if isinstance(description, Thought):
            description = self.continued_thought(engine, branch, description)
        return None if description is None else self.compile(description)

    def for_continuation(
        self, engine: StepEngine, branch: int, description: Description | None
    ) -> PythonConstraint | None:
        """Compiled constraint for a generation that goes on with the branch's last one. On the engine's thread."""
        return self.for_generation(engine, branch, description)

    def continued_thought(self, engine: StepEngine, branch: int, thought: Thought) -> Description | None:
        """Constraint for a generation that may continue a message.

        For a message that was cut short, the `thought` under which its first part was generated. For a message begun
        otherwise that is past its thought, the constraint on the answer alone.
        """
        begun = next((each for each in thought.beginnings if self.is_continued(engine, branch, each)), None)
        return begun or (thought.constraint if thought.is_over else thought)

    def is_continued(self, engine: StepEngine, branch: int, description: Description) -> bool:
        """Returns whether a generation under this description would continue the branch's last output."""
        native = self._known.get(description)
        return native is not None and engine.goes_on(branch, native)

    def is_compiled(self, description: Description) -> bool:
        """Returns whether the description has been compiled, so that `compile` is immediate."""
        return _key(description) in self._known

    def compile(self, description: Description) -> PythonConstraint:
        """The description as an engine constraint, one object for equal descriptions. Compiles it the first time.

        Raises InvalidInput with llguidance's reason.
        """
        key = _key(description)
        with self._lock:
            native = self._known.get(key)
        if native is None and self._restored and isinstance(description, GrammarSource):
            native = self._restored.get(description.grammar)
        if native is None:
            rule = self.compiled(description)  # without the lock: it may take long, and lets other threads run
            with self._lock:
                native = self._known.get(key) or self.as_native(preview(description), rule)
        with self._lock:
            self._known[key] = native
        with self._lock:
            self._recent[key] = native
            self._recent.move_to_end(key)
            while len(self._recent) > _KEPT:
                self._recent.popitem(last=False)
        return native

    def saved_output(self, image: StoredBranch) -> SavedOutput | None:
        """Record of a branch's last output for a file; None unless the output is under a grammar."""
        grammar = None if image.constraint is None else self.text_of(image.constraint)
        if grammar is None:
            return None
        return SavedOutput(
            grammar=grammar, began=image.output_began, end=image.output_end, complete=image.output_complete
        )

    def restored_output(self, saved: SavedOutput | None) -> dict[str, Any]:
        """Fields of a StoredBranch that continues such an output. Raises InvalidInput where its grammar is none."""
        if saved is None:
            return {}
        place = {"output_began": saved.began, "output_end": saved.end, "output_complete": saved.complete}
        return {"constraint": self.restored(saved.grammar), **place}

    def text_of(self, constraint: object) -> str | None:
        """Grammar that `constraint` was compiled from; None for a user's own Constraint."""
        with self._lock:
            keys = [key for key, native in self._known.items() if native is constraint]
            texts = [text for text, native in self._restored.items() if native is constraint]
        return next((key.grammar for key in keys if isinstance(key, GrammarSource)), texts[0] if texts else None)

    def restored(self, grammar: str) -> PythonConstraint:
        """Constraint of a loaded branch's output, from its saved grammar. Equal grammars continue that output.

        Raises InvalidInput for a text that is no grammar.
        """
        with self._lock:
            known = [native for key, native in self._known.items() if _text_of(key) == grammar]
            native = known[0] if known else self._restored.get(grammar)
        if native is None:
            try:
                rule = self._rule(grammar)
            except ValueError as error:
                raise InvalidInput(f"the grammar of a saved output is none: {error}") from error
            native = self.as_native("a saved grammar", rule)
            with self._lock:
                native = self._restored.setdefault(grammar, native)
        return native

    def compiled(self, description: Description) -> Rule:
        """Compiles a description, without the cache. Raises InvalidInput with llguidance's reason."""
        if not isinstance(description, GrammarSource):
            return CustomConstraint(description, frozenset(self.tokenizer.eos_ids), self.vocab_size)
        held = (
            self.compile(description.constraint).rule
            if isinstance(description, Thought) and description.constraint
            else None
        )
        try:
            return self._rule(description.grammar, held)
        except ValueError as error:
            advice = 'rules are lines such as `start: "yes" | NAME`, in llguidance\'s variant of Lark'
            raise InvalidInput(f"{preview(description)} is no grammar: {str(error).rstrip()}\n{advice}") from error

    def _rule(self, grammar: str, inner: Rule | None = None) -> Rule:
        """Compiles a grammar's text. `inner` is the rule on a thought's message where it is compiled already."""
        parts = parts_of(grammar)
        if parts is None:
            return GrammarRule(grammar, self._open_vocabulary())
        if inner is None and parts.constraint is not None:
            inner = GrammarRule(parts.constraint, self._open_vocabulary())
        return ThinkingRule(parts, self.tokenizer, self._pieces, inner)

    @cached_property
    def _pieces(self) -> list[bytes]:
        return self.tokenizer.token_bytes(self.vocab_size)[: self.vocab_size]

    def _open_vocabulary(self) -> GrammarVocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary(self.tokenizer, self.vocab_size)
            return self._vocabulary

    def as_native(self, name: str, rule: Rule) -> PythonConstraint:
        """Wraps a rule as an engine constraint."""
        from agentkv_runtime.constraints import PythonConstraint, PythonConstraintDriver

        if self._driver is None:
            self._driver = PythonConstraintDriver(ConstraintDriver())
        return PythonConstraint(self._driver, name, rule)


def _reason(error: BaseException) -> str:
    why = safe_str(error)
    return why if isinstance(error, ConstraintFailed) else f"{type(error).__name__}: {why}"


def _text_of(key: object) -> str | None:
    return key.grammar if isinstance(key, GrammarSource) else None


def _key(description: Description) -> object:
    """Cache key: grammars by value, users' own constraints by identity, as their rule keeps them alive."""
    return description if isinstance(description, GrammarSource) else id(description)
