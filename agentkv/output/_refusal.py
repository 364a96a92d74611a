"""Whether llguidance can hold a grammar, asked before anything is generated."""

from __future__ import annotations

from functools import lru_cache

from ._llguidance import llguidance

_OPTION = "Enable 'coerce_one_of' option to approximate oneOf with anyOf"  # which is not ours


@lru_cache(maxsize=256)
def refusal(grammar: str) -> str | None:
    """Why llguidance refuses a grammar, in one line; None where it takes it. No tokenizer is needed."""
    reason = llguidance().LLMatcher.validate_grammar(grammar)
    return " ".join(reason.split()).replace(_OPTION, "Use anyOf") or None
