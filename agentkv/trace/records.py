"""What a trace file consists of: records, in the order in which things happened.

Times (`at`) are nanoseconds on one clock, which Began tells the time of; durations are nanoseconds. Tokens are int32,
in bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

VERSION = 1


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all records. Fields may be added at the end, with defaults; what they mean stays."""


class Began(Record, tag=1, frozen=True):
    """The first record: what is recorded, and on what.

    Attributes:
        at: when, on the clock of all records.
        version: of this format.
        unix_ns: when, in nanoseconds since 1970.
        agentkv: the version that wrote it.
        isa: the instruction set of the kernels.
        model: fields of ModelInfo.
        options: how the Context was opened, to open it again.
    """

    at: int
    version: int
    unix_ns: int
    agentkv: str
    isa: str
    model: dict[str, Any]
    options: dict[str, Any]


class Stepped(Record, tag=2, frozen=True):
    """A step that ran a forward.

    Attributes:
        shares: what each branch had in it, as StepReport says it; None where that is as in the step before.
    """

    at: int
    took: int
    forward: int
    draft: int
    forwards: int
    shares: bytes | None


class CacheLevel(Record, tag=3, frozen=True):
    """What the cache holds, every now and then: cells and bytes."""

    at: int
    branches: int
    cells_used: int
    cells_shared: int
    cells_retained: int
    kv_bytes: int
    kv_bytes_shared: int
    states: int


class Branched(Record, tag=4, frozen=True):
    """New branches.

    Attributes:
        how: "create", "fork", "copy" (for the step loop's own use), "restore" (of a file), or "found": it was there
            when the recording began.
        source: the branch that they have their history from; -1 for none.
        streams: of each, that of its random numbers.
        reused: tokens of a prompt that the cache had already.
    """

    at: int
    how: str
    source: int
    branches: list[int]
    streams: list[int]
    reused: int = 0


class Verb(Record, tag=5, frozen=True):
    """A verb on a branch that makes none: "rollback", "adopt", "close", "forget", "replace", "uncache", "set_stream",
    "set_aside", "bring_back", "save", "cancel" (of a job), "take_back", "compact"; with its numbers. "forgotten" is no
    verb: positions that a restored branch had forgotten, and at what length."""

    at: int
    name: str
    branch: int
    numbers: list[int]


class Logged(Record, tag=6, frozen=True):
    """A branch has other tokens: the first `kept` stay, then come `added`. One that has just begun, or adopted another,
    begins with those of its source."""

    at: int
    branch: int
    kept: int
    added: bytes


class GenerateParams(Record, frozen=True):
    """How a generation draws, and what ends it.

    Attributes:
        grammar: text of the grammar that the output keeps to; "" where there is none, None where it has no text (a
            constraint written in Python).
        drafts: does a strategy draft for it?
        made, output_made: so many tokens at the end of the branch were of it already, as penalties count them, and of
            its output.
    """

    max_tokens: int
    stop: list[str]
    sampling: dict[str, Any]
    seed: int
    grammar: str | None
    drafts: bool
    streamed: bool
    made: int = 0
    output_made: int = 0


class JobBegan(Record, tag=7, frozen=True):
    """Work that takes steps: "extend", "generate", "logits", "select".

    Attributes:
        tokens: that an extend is to feed.
        choices: of a select, the tokens of each.
    """

    at: int
    job: int
    branch: int
    kind: str
    tokens: int = 0
    how: GenerateParams | None = None
    choices: list[bytes] = []


class JobEnded(Record, tag=8, frozen=True):
    """Its end.

    Attributes:
        reason: finish reason of a generation, or "cancelled"; "" for none.
        error: what it failed with; "" for nothing.
        tokens: of a generation, those that it made.
        digests: of a generation, uint64 per token: of the row of logits that it was drawn from. Of "logits", of that.
        scores: of a select.
        output_began: of a generation under a grammar, where in the branch its output begins: before it, where it went
            on with one that was cut; -1 without.
        first_token: nanoseconds from the job's begin to the first token; 0 where none came.
    """

    at: int
    job: int
    reason: str
    error: str
    tokens: bytes
    digests: bytes
    first_token: int
    scores: list[float] = []
    output_began: int = -1


class ValueRecord(Record, tag=17, frozen=True):
    """A value that others refer to by its number: a message, tools, the state of a conversation; JSON."""

    number: int
    json: str


class Conversed(Record, tag=9, frozen=True):
    """The tokens of a branch are these messages.

    Attributes:
        messages: of each (number of the value, first token, end, whether it is the model's own).
        tools: number of the definitions that the model was told of; -1 for none.
        template: variables of the chat template; JSON.
        opened: is it the assistant's turn?
        state: number of all that is known of the conversation, to go on from there.
    """

    at: int
    branch: int
    messages: list[tuple[int, int, int, bool]]
    tools: int
    template: str
    opened: bool
    state: int


class TurnBegan(Record, tag=10, frozen=True):
    """An agent's turn on a branch."""

    at: int
    turn: int
    branch: int
    instructions: str
    tools: list[str]


class TurnEnded(Record, tag=11, frozen=True):
    """Its end.

    Attributes:
        error: what ended it early; "" for nothing.
    """

    at: int
    turn: int
    error: str
    rounds: int


class CallBegan(Record, tag=12, frozen=True):
    """A call of a tool.

    Attributes:
        call: its name within the branch's conversation, such as "call_1".
        arguments: JSON.
    """

    at: int
    turn: int
    call: str
    name: str
    arguments: str


class CallEnded(Record, tag=13, frozen=True):
    """Its end.

    Attributes:
        status: as of kv.CallRecord.
        content: what the model reads.
    """

    at: int
    turn: int
    call: str
    name: str
    status: str
    content: str
    took: int
    attempts: int


class Noted(Record, tag=14, frozen=True):
    """Something else that happened: "retried", "rolled back", "approval asked", "waits for room", "note" ..."""

    at: int
    branch: int
    what: str
    text: str


class Spelled(Record, tag=15, frozen=True):
    """What tokens spell, before they occur."""

    tokens: bytes
    pieces: list[bytes]


class Ended(Record, tag=16, frozen=True):
    """The recording was ended, not broken off."""

    at: int


AnyRecord: TypeAlias = (
    Began
    | Stepped
    | CacheLevel
    | Branched
    | Verb
    | Logged
    | JobBegan
    | JobEnded
    | ValueRecord
    | Conversed
    | TurnBegan
    | TurnEnded
    | CallBegan
    | CallEnded
    | Noted
    | Spelled
    | Ended
)
