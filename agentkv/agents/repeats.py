"""Calls that a turn makes again though nothing has happened since."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkv_runtime.formats.parsed import ParsedCall

    from .._types.run import CallRequest
    from .tool_runner import Call

_MADE_BEFORE, _GO_ON = "this call was made before", "go on with that"
_NOTE_PHRASES = (_MADE_BEFORE, _GO_ON, "do not make it again")
_MAY_END_OTHERWISE = ("retry", "failed", "timeout", "cancelled")


class Repeats:
    """Knows the calls of the last message that ran any: until others have run, the same ones would give the same.

    So a test may be run again after an edit. A tool that is `repeatable` is never counted; a call that failed runs
    again, and is counted.

    Attributes:
        stuck: has the last message made no other calls?
        times: so many messages made a call of the last one again, of whichever was made most often.
    """

    def __init__(self) -> None:
        self._last: dict[str, Call] = {}  # of the last message that ran any, by what they say
        self._now: dict[str, Call] = {}  # of this message
        self._times: Counter[str] = Counter()  # messages that said one of the last again
        self.stuck = False
        self.times = 0

    def has_now(self, parsed: ParsedCall) -> bool:
        """Has this message made that call?"""
        return _said(parsed) in self._now

    def why_not(self, request: CallRequest) -> str | None:
        """What the model reads instead of a result of a call that it makes again; None where it may run."""
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

    def write(self, call: Call) -> None:
        """A call was written."""
        if not call.repeatable:
            self._now.setdefault(_said(call.request), call)

    def end_message(self) -> tuple[str, int]:
        """The calls of a message have ended. The name of the one that was said again most often, and how often."""
        now, self._now = self._now, {}
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


def _said(call: CallRequest | ParsedCall) -> str:
    """What a call says, however it is written."""
    return json.dumps([call.name, call.arguments or {}, call.error], sort_keys=True, default=str)


def echoes_note(text: str) -> bool:
    """Does an answer say again what the model is told of a call that it makes again?"""
    return any(phrase in text.casefold() for phrase in _NOTE_PHRASES)
