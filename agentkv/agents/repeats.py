"""Detection of calls that a turn repeats with no other call in between."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkv_runtime.formats.parsed import ParsedCall

    from .._types.run import CallRequest
    from .tool_runner import ToolCallRunner

_MADE_BEFORE, _GO_ON = "this call was made before", "go on with that"
_NOTE_PHRASES = (_MADE_BEFORE, _GO_ON, "do not make it again")
_MAY_END_OTHERWISE = ("retry", "failed", "timeout", "cancelled", "unknown")


class Repeats:
    """Finds calls that repeat one of the last message that ran any: nothing has run since that could change results.

    A test may thus run again after an edit. A `repeatable` tool is never counted; a call that failed runs again, and
    is counted.

    Attributes:
        stuck: whether the last message made repeated calls only.
        times: number of messages that repeated a call, for the most repeated call of the last message.
    """

    def __init__(self) -> None:
        self._last: dict[str, ToolCallRunner] = {}  # of the last message that ran any, by `_said`
        self._now: dict[str, ToolCallRunner] = {}  # of this message
        self._times: Counter[str] = Counter()  # messages that repeated one of `_last`
        self._messages: list[frozenset[str]] = []  # the calls of each
        self._told = False  # that messages come round again
        self.stuck = False
        self.times = 0

    def has_now(self, parsed: ParsedCall) -> bool:
        """Returns whether this message has already made that call."""
        return _said(parsed) in self._now

    def why_not(self, request: CallRequest) -> str | None:
        """Text that the model reads in place of the result of a repeated call; None where the call may run."""
        said = _said(request)
        if said in self._now:
            return "this message makes the same call twice; the result of the first one is the result of both"
        earlier = self._last.get(said)
        record = earlier.record if earlier else None
        if record is None or record.status in _MAY_END_OTHERWISE:
            return None
        if not self._times[said]:
            return f"{_MADE_BEFORE}, and gave: {record.content}\nDo not make it again; {_GO_ON}"
        return f"refused: {_MADE_BEFORE}, and its result is above; {_GO_ON}, or call something else"

    def write(self, call: ToolCallRunner) -> None:
        """Records a call of the current message."""
        if not call.repeatable:
            self._now.setdefault(_said(call.request), call)

    def drop(self, call: ToolCallRunner) -> None:
        """Forgets a call of the current message that was taken back."""
        self._now = {said: each for said, each in self._now.items() if each is not call}

    def end_message(self) -> tuple[str, int]:
        """Ends a message whose calls have ended. Returns its most repeated call: its name and the number of repeats."""
        now, self._now = self._now, {}
        self._messages.append(frozenset(now))
        for said in now:
            if said in self._last:
                self._times[said] += 1
        worst = max(now, key=lambda said: self._times[said], default="")
        name, times = (now[worst].request.name if now else ""), self._times[worst]
        ran = {said: call for said, call in now.items() if call.finished.status != "repeated"}
        self.stuck = bool(now) and not ran
        self.times = times
        if ran:
            self._last = ran
            self._times = Counter({said: self._times[said] for said in ran})
        return name, times

    def round_trip(self) -> int:
        """Number of messages whose calls were just made a second time in the same order, as of A, B, A, B; 0 where
        there are none, or once they were told."""
        for length in range(2, 0 if self._told else len(self._messages) // 2 + 1):
            if self._messages[-1] != self._messages[-1 - length]:
                continue  # most, without a look at all between
            last, before = self._messages[-length:], self._messages[-2 * length : -length]
            if last == before and all(last) and len({*last}) > 1:
                self._told = True
                return length
        return 0


def _said(call: CallRequest | ParsedCall) -> str:
    """Canonical JSON of a call, equal for equal calls however they are written."""
    return json.dumps([call.name, call.arguments or {}, call.error], sort_keys=True, default=str)


def echoes_note(text: str) -> bool:
    """Returns whether an answer repeats the note that stands in place of the result of a repeated call."""
    return any(phrase in text.casefold() for phrase in _NOTE_PHRASES)
