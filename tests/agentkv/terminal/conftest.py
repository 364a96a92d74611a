"""A person at a terminal, who is gone after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .chats import SitDown
from .person import Person


@pytest.fixture
def sit_down(tmp_path: Path) -> Iterator[SitDown]:
    people: list[Person] = []

    def sit_down(*options: str, ready: bool = True, disk_is_full: bool = False) -> Person:
        people.append(Person(tmp_path / "home", *options, disk_is_full=disk_is_full))
        if ready:
            people[-1].prompted()
        return people[-1]

    yield sit_down
    for person in people:
        person.dies()
