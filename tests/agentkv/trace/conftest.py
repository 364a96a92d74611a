"""Fixtures of the traces' tests: what the SDK's and the agents' use, and how one reads a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from agentkv.trace.file import read_frames
from agentkv.trace.records import AnyRecord
from tests.agentkv.agents.conftest import open_desk  # noqa: F401 - a fixture
from tests.agentkv.conftest import anyio_backend, folder, open_context  # noqa: F401 - fixtures

Kind = TypeVar("Kind")


def records_of(path: Path) -> list[AnyRecord]:
    return [record for frame in read_frames(path) for record in frame]


def only(kind: type[Kind], records: list[AnyRecord]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]
