"""`make test-arm` says what it lacks before it does anything."""

from __future__ import annotations

import pytest

from tests.arm import __main__ as arm


def test_what_is_missing_is_named_by_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match=r"apt-get install qemu-user g\+\+-aarch64-linux-gnu apt dpkg"):
        arm.main()
