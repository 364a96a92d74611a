"""Request fields that change no answer here: they are left out, logged once, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..._types.log import log
from .errors import ApiError

if TYPE_CHECKING:
    from prometheus_client import Counter

# Fields that are ignored, by reason, where the field or its value is unknown. `*` is any entry of a list. A name
# without a dot is a parameter of the request itself; others match at any depth.
_BY_REASON: Mapping[str, tuple[str, ...]] = {
    "every prefix is cached": (
        "cache_control",
        "cache_control.scope",
        "cache_control.ttl",
        "content.*.cache_control",
        "messages.*.cache_control",
        "tools.*.cache_control",
        "function.cache_control",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "cache_prompt",
        "id_slot",
        "prediction",
    ),
    "a conversation stays whole": ("context_management",),
    "thoughts are shown whole, and nobody summarises them": (
        "thinking.display",
        "reasoning.summary",
        "reasoning.generate_summary",
        "reasoning.exclude",
        "include_reasoning",
        "reasoning_summary",
        "stream_options.reasoning_summary_delivery",
    ),
    "thoughts are plain text": ("include.*", "input.*.encrypted_content", "content.*.signature"),
    "it is not a word to the model": (
        "client_metadata",
        "extra_headers",
        "inference_geo",
        "litellm_call_id",
        "litellm_metadata",
        "litellm_session_id",
        "litellm_trace_id",
        "metadata",
        "models",
        "provider",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "speed",
        "store",
        "timings_per_token",
        "usage",
        "user",
        "user_id",
    ),
    "the model says as much as it says": ("text.verbosity", "verbosity"),
    "every tool is shown": ("tools.*.defer_loading", "tools.*.allowed_callers"),
    "calls are held to their schemas": (
        "tools.*.strict",
        "tools.*.eager_input_streaming",
        "tools.*.input_examples",
        "tools.*.output_schema",
        "function.strict",
    ),
    "it tells how an earlier message came about": (
        "messages.*.annotations",
        "messages.*.finish_reason",
        "messages.*.id",
        "messages.*.index",
        "messages.*.logprobs",
        "messages.*.metadata",
        "messages.*.model",
        "messages.*.provider_specific_fields",
        "messages.*.reasoning_details",
        "messages.*.reasoning_signature",
        "messages.*.status",
        "messages.*.stop_details",
        "messages.*.stop_reason",
        "messages.*.stop_sequence",
        "messages.*.thinking_blocks",
        "messages.*.timestamp",
        "messages.*.token_ids",
        "messages.*.type",
        "messages.*.usage",
        "content.*.annotations",
        "content.*.caller",
        "content.*.citations",
        "content.*.id",
        "content.*.logprobs",
        "content.*.provider_specific_fields",
        "input.*.annotations",
        "input.*.created_by",
        "input.*.metadata",
        "input.*.phase",
        "input.*.status",
    ),
}
IGNORED: Mapping[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names}

# Types of message blocks that only their maker can read.
UNREADABLE: Mapping[str, str] = {"redacted_thinking": "what others encrypted cannot be read"}

# Values by which clients of other servers leave a field unset.
UNSET: Mapping[str, object] = {"max_tokens": -1, "max_completion_tokens": -1, "max_output_tokens": -1, "top_k": -1}

# Fields whose false is a request of its own, since true is the default of some servers.
SWITCHES = frozenset({"add_generation_prompt", "add_special_tokens", "enable_thinking", "skip_special_tokens", "think"})


_MOST_SAID = 1000


def reason_for(place: str) -> tuple[str, str] | None:
    """Looks up the row that a field matches and why it is ignored; None for fields that are not."""
    parts = place.split(".")
    rows = (".".join(parts[begin:]) for begin in range(max(len(parts) - 1, 1)))
    return next(((row, IGNORED[row]) for row in rows if row in IGNORED), None)


class Ignored:
    """Record of the fields that one server left out of requests: each kind is logged once and counted each time.

    Attributes:
        strict: whether such requests are refused instead.
    """

    def __init__(self, counter: Counter, strict: bool) -> None:
        self.strict = strict
        self._counter = counter
        self._said: set[tuple[str, str]] = set()

    def leave_out(self, param: str, why: str) -> None:
        """Records that a parameter is left out. Raises ApiError on a strict server."""
        if self.strict:
            raise ApiError("invalid", f"{why}; leave it out", param=param)
        self.note(param, why)

    def note(self, what: str, why: str, of: str = "") -> None:
        """Counts and logs something left out. `what` is a metric label from a known set; `of` may be a client's own
        word."""
        self._counter.labels(what).inc()
        if (what, of) not in self._said and len(self._said) < _MOST_SAID:
            self._said.add((what, of))
            log.warning("left out of requests", what=what, why=why, **({"of": of} if of else {}))
