"""Records of a trace file, in the order of events.

Times (`at`) are nanoseconds on one clock, which Began relates to the time of day; durations are nanoseconds. Tokens are
int32, in bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

VERSION = 1
ADAPTER = "adapter"  # what is noted of a branch that gets a LoRA adapter


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all records. Fields may be added at the end, with defaults; meanings never change."""


class Began(Record, tag=1, frozen=True):
    """The first record: model and machine of the recording.

    Attributes:
        at: begin of the recording, on the clock of all records.
        version: version of this format.
        unix_ns: begin of the recording, in nanoseconds since 1970.
        agentkv: version of agentkv that wrote the file.
        isa: instruction set of the kernels.
        model: fields of ModelInfo.
        options: options of `Context.open`, for a replay.
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
        shares: each branch's share of the step, as in StepReport; None where it equals that of the step before.
    """

    at: int
    took: int
    forward: int
    draft: int
    forwards: int
    shares: bytes | None


class CacheLevel(Record, tag=3, frozen=True):
    """Cells and bytes in the cache, sampled about 20 times a second while there are records."""

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
        how: "create", "fork", "copy" (for the step loop's own use), "restore" (from a file), or "found" (live when the
            recording began).
        source: branch whose history they begin with; -1 for none.
        streams: number of each branch's random stream.
        reused: number of prompt tokens that were cached already.
    """

    at: int
    how: str
    source: int
    branches: list[int]
    streams: list[int]
    reused: int = 0


class Verb(Record, tag=5, frozen=True):
    """A verb that makes no branch, with its numeric arguments.

    Names: "rollback", "adopt", "close", "forget", "replace", "uncache", "set_stream", "set_aside", "bring_back",
    "save", "cancel" (of a job), "take_back", "compact". "forgotten" is no verb: positions that a restored or found
    branch had forgotten, and at what length.
    """

    at: int
    name: str
    branch: int
    numbers: list[int]


class Logged(Record, tag=6, frozen=True):
    """A change of a branch's tokens: the first `kept` stay, then `added` follow.

    A branch that is new, or has adopted another, begins with the tokens of its source.
    """

    at: int
    branch: int
    kept: int
    added: bytes


class GenerateParams(Record, frozen=True):
    """Options of a generation.

    Attributes:
        grammar: text of the grammar of the output; "" for none, None for a constraint without text (written in Python).
        drafts: whether a strategy drafts tokens.
        streamed: whether tokens are reported as they come.
        made, output_made: numbers of tokens at the end of the branch that were of this generation (for penalties), and
            of its output, already.
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
    """Begin of a job, which takes steps: "extend", "generate", "logits" or "select".

    Attributes:
        tokens: number of tokens of an extend.
        how: options of a generation.
        choices: tokens of each choice of a select.
    """

    at: int
    job: int
    branch: int
    kind: str
    tokens: int = 0
    how: GenerateParams | None = None
    choices: list[bytes] = []


class JobEnded(Record, tag=8, frozen=True):
    """End of a job.

    Attributes:
        reason: finish reason of a generation, or "cancelled"; "" for none.
        error: type and message of the error that the job failed with; "" for none.
        tokens: tokens that a generation made.
        digests: uint64 per token of a generation: digest of the row of logits that it was sampled from; for "logits",
            of that row.
        first_token: nanoseconds from the job's begin to the first token; 0 without one.
        scores: scores of a select.
        output_began: position where the output of a generation under a grammar begins: before the generation, where
            that continues an output; -1 without a grammar.
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
    """JSON of a value that other records refer to by its number: a message, tools, the state of a conversation."""

    number: int
    json: str


class Conversed(Record, tag=9, frozen=True):
    """Messages that the tokens of a branch are.

    Attributes:
        messages: for each (number of the value, first token, end, whether the model wrote it).
        tools: number of the tool definitions in the prompt; -1 for none.
        template: variables of the chat template; JSON.
        opened: whether it is the assistant's turn.
        state: number of the conversation's full state, to continue from.
    """

    at: int
    branch: int
    messages: list[tuple[int, int, int, bool]]
    tools: int
    template: str
    opened: bool
    state: int


class TurnBegan(Record, tag=10, frozen=True):
    """Begin of an agent's turn on a branch."""

    at: int
    turn: int
    branch: int
    instructions: str
    tools: list[str]


class TurnEnded(Record, tag=11, frozen=True):
    """End of an agent's turn.

    Attributes:
        error: error that ended the turn early; "" for none.
    """

    at: int
    turn: int
    error: str
    rounds: int


class CallBegan(Record, tag=12, frozen=True):
    """Begin of a tool call.

    Attributes:
        call: id of the call within the branch's conversation, such as "call_1".
        arguments: JSON.
    """

    at: int
    turn: int
    call: str
    name: str
    arguments: str


class CallEnded(Record, tag=13, frozen=True):
    """End of a tool call.

    Attributes:
        status: status as in kv.CallRecord.
        content: text of the result that the model reads.
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
    """Another event: "retried", "rolled back", "approval asked", "steered", "waits for room", "adapter", "note" ..."""

    at: int
    branch: int
    what: str
    text: str


class Spelled(Record, tag=15, frozen=True):
    """Bytes of tokens, before these occur in other records."""

    tokens: bytes
    pieces: list[bytes]


class Ended(Record, tag=16, frozen=True):
    """The last record of a recording that was not broken off."""

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
