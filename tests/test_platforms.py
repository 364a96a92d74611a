"""`make check-platforms` compiles what CMake compiles, and says what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.platforms import __main__ as platforms
from tests.platforms.__main__ import TARGETS
from tests.platforms.sources import LEFT_OUT, LEVELS, ROOMS, isa_flags, units

ROOT = Path(__file__).resolve().parents[1]
Asked = Callable[..., tuple[list[str], list[str]]]


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    def ask(*words: str) -> tuple[list[str], list[str]]:
        (tmp_path / "python").touch()
        monkeypatch.setattr(platforms, "ZIG", tmp_path / "python")
        monkeypatch.setattr("sys.argv", ["tests.platforms", *words])
        options = platforms.asked()
        return list(options.targets), options.only

    return ask


def test_a_part_is_what_the_page_says(asked: Asked) -> None:
    page = (ROOT / "docs/internals/platforms.md").read_text()
    (words,) = re.findall(r"PLATFORMS='(.*)'", page)
    assert asked(*words.split()) == (["aarch64-macos"], ["core"])
    assert asked() == ([*TARGETS], [])
    assert asked("--only", "core", "--only", "cpu") == ([*TARGETS], ["core", "cpu"])


def test_what_tests_are_linked_with_is_compiled() -> None:
    assert platforms.wanted("x86_64-windows-gnu", ["core"]) == {"platform", "core"}
    assert platforms.wanted("aarch64-macos", ["core"]) == {"core"}
    for target in TARGETS:
        assert platforms.wanted(target, []) == {*ROOMS}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--only corr", "invalid choice: 'corr'"),
        ("sparc", "no target 'sparc'; there are aarch64-macos"),
        ("x86_64-macosx", "no target 'x86_64-macosx'"),
        ("--jobs 0", "--jobs is 0, but it must be at least 1"),
    ],
)
def test_what_there_is_not_is_refused(
    asked: Asked, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        asked(*words.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_zig_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(platforms, "ZIG", tmp_path / "none")
    monkeypatch.setattr("sys.argv", ["tests.platforms"])
    with pytest.raises(SystemExit):
        platforms.main()
    assert "`make check-platforms` installs it first" in capsys.readouterr().err
