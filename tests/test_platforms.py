"""`make check-platforms` compiles what CMake compiles, and says what it leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.platforms.__main__ import TARGETS
from tests.platforms.sources import LEFT_OUT, LEVELS, ROOMS, isa_flags, units

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("target", TARGETS)
def test_every_source_is_compiled_or_left_out_by_name(target: str) -> None:
    compiled = {unit.source for unit in units(target)}
    of_another = ROOT / "cpp/platform" / ("posix.cpp" if "windows" in target else "windows.cpp")
    wanted = {path for room in ROOMS for path in (ROOT / "cpp" / room).rglob("*.cpp")}
    assert compiled == wanted - {of_another}
    assert {path.name for path in (ROOT / "cpp").iterdir()} == {*ROOMS, *LEFT_OUT}


@pytest.mark.parametrize("target", TARGETS)
def test_every_unit_has_an_object_of_its_own(target: str) -> None:
    names = [unit.name for unit in units(target)]
    assert len(names) == len(set(names))


def test_instruction_sets_are_those_of_cmake() -> None:
    lists = re.findall(r"set\(AGENTKV_\w*ISAS (.+)\)", (ROOT / "cmake/KernelsPerIsa.cmake").read_text())
    named = {word for found in lists for word in found.split() if not word.startswith("$")}
    assert named == {isa for kinds in LEVELS.values() for isas in kinds.values() for isa in isas.split()}
    assert not [flag for flags in isa_flags().values() for flag in flags if re.search(r"-m(arch|cpu)=.*-", flag)]
