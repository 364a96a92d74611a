"""Waiting policy of torch's threads. Imports no torch, as the policy must be set first."""

from __future__ import annotations

import os

__all__ = ["wait_asleep"]


def wait_asleep() -> None:
    """Makes torch's threads sleep while they wait, unless torch is loaded or the user's environment says otherwise.

    On a busy machine, spinning threads take the processor from those that they wait for: measuring importance took
    three to nine times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
