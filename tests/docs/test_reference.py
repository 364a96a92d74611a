"""Pages of the reference say in a checkout what fills them."""

from __future__ import annotations

from tests.docs.blocks import DOCS


def test_pages_without_text_say_what_fills_them() -> None:
    empty = [path for path in (DOCS / "reference").glob("*.md") if ":::" in path.read_text("utf-8")]
    assert empty
    assert [path.name for path in empty if "make docs" not in path.read_text("utf-8")] == []
    assert ".checkout" in (DOCS / "site.css").read_text("utf-8")  # and not where they are filled
