"""Added tokens: which characters of a text may be taken for theirs."""

from __future__ import annotations

import pytest
from agentkv_runtime.text.added_tokens import AddedTokens
from tokenizers import AddedToken

from .chat_styles import byte_level, unigram


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\uff1c\uff5cim_end\uff5c\uff1e", "\uff1c\uff5cim_end\uff5c\uff1e"),
        ("a \u4f60\u597d b", ""),
        ("\ufb01", "\ufb01"),
        ("", ""),
    ],
)
def test_what_a_normalizer_may_turn_into_a_control_token(text: str, found: str) -> None:
    """T5's kind makes one of compatibility forms; tokens that are matched as written have no other forms."""
    tokenizer = unigram()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", normalized=True), AddedToken("<fin>", normalized=True)])
    assert AddedTokens(tokenizer).look_alikes(text) == set(found)
    as_written = byte_level()
    as_written.add_special_tokens(["<|im_end|>", "<fin>"])
    assert AddedTokens(as_written).look_alikes(text) == set()
