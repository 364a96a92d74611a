"""Which tests of the SDK cannot apply over a server, by name and why: see `AGENTKV_TESTS_OVER` in tests/agentkv."""

from __future__ import annotations

HERE = "passes objects of this process into the step loop"
STEPS = "counts or waits for forwards, which are the server's"
CELLS = "is about the cells of a cache, which are the server's"
LOCAL = "opens the model in this process, with options of its own"

MODULES: dict[str, str] = {
    "test_blocked_strategy": HERE,
    "test_spec": HERE,
    "test_spec_eagle": HERE,
    "test_spec_output": HERE,
    "test_coalescing": STEPS,
    "test_forgetting": CELLS,
    "test_retention": CELLS,
    "test_quantize_after": CELLS,
    "test_saving": CELLS,
}

TESTS: dict[str, str] = {
    "test_a_cancelled_prefill_leaves_the_branch_as_it_was": STEPS,
    "test_a_cancelled_first_prefill_leaves_no_branch": STEPS,
}


def reason(module: str, test: str) -> str | None:
    """Why it cannot apply; None where it does."""
    return MODULES.get(module) or TESTS.get(test)
