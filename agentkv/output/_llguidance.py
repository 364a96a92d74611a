"""llguidance, a shared library, loaded with the first output that needs one."""

from __future__ import annotations

from typing import Any

from .._types.errors import loading


def llguidance() -> Any:
    """Imports the module. Raises AgentKVError where it cannot be loaded."""
    with loading("llguidance"):
        import llguidance
    return llguidance
