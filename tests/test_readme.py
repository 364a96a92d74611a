"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
((EXAMPLE, PRINTED),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_example_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLE, "README.md", "exec"), {})
    assert capsys.readouterr().out == PRINTED  # the tool was called, and its result was read
