"""How torch's threads wait for each other. Imports no torch: it must be said before."""

from __future__ import annotations

import os

__all__ = ["wait_asleep"]


def wait_asleep() -> None:
    """Has threads of torch, where it is not loaded yet, wait asleep and not busily.

    On a machine with other work the busy ones take the processor from those that they wait for: measuring importance
    took three to nine times as long. What the user's environment says stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
