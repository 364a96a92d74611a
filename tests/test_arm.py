"""`make test-arm` says what it lacks before it does anything."""

from __future__ import annotations

import pytest

from tests.arm import __main__ as arm


def test_what_is_missing_is_named_by_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", ["tests.arm"])
    with pytest.raises(SystemExit, match=r"apt-get install qemu-user g\+\+-aarch64-linux-gnu apt dpkg"):
        arm.main()


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("--quick", 2), ("cortex-a72", 2)])
def test_it_takes_no_arguments(monkeypatch: pytest.MonkeyPatch, word: str, status: int) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", ["tests.arm", word])
    with pytest.raises(SystemExit) as ended:
        arm.main()
    assert ended.value.code == status
