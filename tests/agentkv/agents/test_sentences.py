"""Ends of sentences."""

from __future__ import annotations

import pytest

from agentkv.agents.sentences import ends_of_sentences


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        ("No end yet", ""),
        ("One.", "One."),
        ("One. Two", "One."),
        ("One! Two? Thr", "One! Two?"),
        ("It costs 3.14 and", ""),
        ("See a.b.c for", ""),
        ("Wait... and", "Wait..."),
        ('He said "Go." Then', 'He said "Go."'),
        ("**Bold.** then", "**Bold.**"),
        ("Steps:\n1. Take it", "Steps:"),
        ("Steps:\n1. Take it.\n2. Lea", "Steps:\n1. Take it."),
        ("- a\n- b\n- c", "- a\n- b"),
        ("line\n\nnext", "line"),
        ("\u597d\u3002\u518d\u89c1", "\u597d\u3002"),
        ("Yes.\n", "Yes."),
    ],
)
def test_a_text_has_whole_sentences(text: str, whole: str) -> None:
    ends = ends_of_sentences(text)
    assert ends == sorted(ends)
    assert text[: ends[-1] if ends else 0].rstrip() == whole
