"""Engine of a remote Context: branches are local logs, jobs are requests to a server.

It implements `StepEngine` but never steps: events of the server arrive in `hear`, on the network thread, wake the step
loop's thread, and are settled there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from .._types.errors import InvalidInput
from ..output._spec import output_to_json
from ..output._thought import Thought
from .branches import BranchLog, BranchTable, RemoteLogChange
from .jobs import GenerateJob, LogitsJob, RemoteEmitted, RemoteExtendJob, RemoteFinished, RemoteJob, SelectJob
from .no_cells import NullCellVerbs
from .options import RemoteOptions
from .protocol import GenerateRequest, PrefillEvent, RetryEvent, ServerEvent
from .publishing import AttachJob, PublishJob, place_of
from .reports import Counters, RemoteReport

if TYPE_CHECKING:
    from .._documents.conversations import SavedConversations
    from .network import NetworkThread, Send
    from .publishing import NamedAsked

WARM_FROM = 256  # tokens: fewer are not worth a prefill request, and go with the next one


class RemoteEngine(NullCellVerbs):
    """Branches and jobs over one model on servers. All methods but `on_event` run on the step loop's thread."""

    def __init__(
        self,
        network: NetworkThread,
        token_bytes: Sequence[bytes],
        eos_ids: Sequence[int],
        special_ids: Iterable[int],
        vocab_size: int,
        max_positions: int,
        capacity: int,
    ) -> None:
        super().__init__(BranchTable(max_positions, capacity), vocab_size)
        self._network = network
        self._token_bytes = token_bytes
        self._events: deque[tuple[int, ServerEvent]] = deque()
        self._jobs: dict[int, RemoteJob] = {}
        self._next_job = 0
        self._requests: dict[int, RemoteJob] = {}  # by request: a job that waited for room sends another
        self._next_request = 0
        self._emitted: list[RemoteEmitted] = []
        self._finished: list[RemoteFinished] = []
        self._full: list[int] = []
        self._paused: set[int] = set()
        self.eos_ids = list(eos_ids)
        self.eos = frozenset(eos_ids)
        self.special = {i: self.bytes_of(i) for i in special_ids}
        self.outputs_go_on = network.wire.can_resume
        self.longest = min(max_positions, capacity + 1)  # the last generated token has no cell yet
        self.warm_from = WARM_FROM
        self.stats_ = Counters(capacity=capacity)

    # Events of the network.

    def on_event(self, request: int, event: ServerEvent) -> None:
        """Queues an event of a request; from any thread."""
        self._events.append((request, event))

    def settle(self) -> RemoteReport:
        """Passes queued events to their jobs. Returns their tokens and outcomes since the last call."""
        self._network.listening()
        while self._events:
            number, heard = self._events.popleft()
            self._count(heard)
            job = self._requests.get(number)
            if job is not None:
                job.on_event(heard)
        if not (self._emitted or self._finished or self._full):
            return RemoteReport()
        report = RemoteReport(self._emitted, self._finished, self._full)
        self._emitted, self._finished, self._full = [], [], []
        return report

    def step(self) -> RemoteReport:
        """Settles events, as nothing runs in this process."""
        return self.settle()

    # Services for jobs.

    def bytes_of(self, token: int) -> bytes:
        """Bytes of a token; empty for one that the tokenizer does not have."""
        return self._token_bytes[token] if token < len(self._token_bytes) else b""

    def report_soon(self, job: RemoteJob, event: ServerEvent) -> None:
        """Queues an event for a job, as if a server had sent it."""
        self._events.append((self._request(job), event))

    def emit(self, emitted: RemoteEmitted) -> None:
        """Reports a token to its reader."""
        self._emitted.append(emitted)

    def full(self, job: int) -> None:
        """Reports that a generation waits for room."""
        self._full.append(job)

    def ended(self, job: RemoteJob) -> None:
        """Removes a job that has ended, and reports its outcome."""
        del self._jobs[job.id]
        self._forget(job.request)
        self._finished.append(job.outcome)
        if job.branch.id in self.branches:
            self.branches.note_change(job.branch)

    def pause(self, job: RemoteJob, paused: bool) -> None:
        """Pauses (`paused`) or resumes reading a generation whose reader is too far behind."""
        if paused != (job.request in self._paused):
            (self._paused.add if paused else self._paused.discard)(job.request)
            self._network.pause(job.request, paused)

    def cancel_request(self, job: RemoteJob, at_once: bool) -> None:
        """Ends a job's request.

        Not `at_once` where the server ends by itself with the same token, so that its connection can be reused.
        """
        self._forget(job.request)
        self._network.cancel(job.request, at_once)

    def ask_generation(self, job: RemoteJob, ask: GenerateRequest) -> None:
        """Requests a generation."""
        self._network.generate(self._request(job), job.branch.root, ask)

    def ask_prefill(self, job: RemoteJob, tokens: list[int]) -> None:
        """Requests that the server prefills a prompt."""
        self._network.ask(self._request(job), job.branch.root, lambda wire, http: wire.prefill(http, tokens))

    def ask_logits(self, job: RemoteJob, tokens: list[int]) -> None:
        """Requests the next-token logits after a prompt."""
        self._network.ask(self._request(job), job.branch.root, lambda wire, http: wire.logits(http, tokens))

    def ask_select(self, job: RemoteJob, tokens: list[int], choices: list[list[int]]) -> None:
        """Requests the scores of choices after a prompt."""
        self._network.ask(self._request(job), job.branch.root, lambda wire, http: wire.select(http, tokens, choices))

    def ask_named(self, job: RemoteJob, name: str, send: NamedAsked) -> None:
        """Sends a request on a published name to the server that the name maps to."""
        self._network.ask(self._request(job), place_of(name), cast("Send", send))

    # Verbs.

    def create(self, tokens: Iterable[int] | None = None) -> tuple[int, int]:
        self.check_tokens(() if tokens is None else tokens)
        return self.branches.create().id, 0

    def fork(self, branch: int, n: int) -> list[int]:
        return [child.id for child in self.branches.fork(self.branches.at(branch), n)]

    def copy(self, branch: int) -> int:
        return self.branches.copy(self.branches.idle_or_waiting(branch)).id

    def rollback(self, branch: int, length: int, epoch: int | None = None, keep_forgotten: bool = False) -> None:
        self.branches.rollback(self.branches.idle(branch), length, epoch)

    def adopt(self, dst: int, src: int) -> None:
        self.branches.adopt(self.branches.idle(dst), self.branches.idle(src))

    def forget(self, branch: int, first: int, last: int, for_room: bool = False) -> int:
        raise InvalidInput(
            "forget lets cells go that stay behind others, and these are a server's; roll the branch back, give it an "
            "overflow policy, or, in one, use room.replace"
        )

    def forgotten(self, branch: int) -> Sequence[tuple[int, int]]:
        self.branches.at(branch)
        return ()

    def replace(self, branch: int, first: int, last: int, tokens: Iterable[int]) -> None:
        found = self.branches.idle_or_waiting(branch)
        given, before = self.check_tokens(tokens), len(found)
        self.branches.replace(found, first, last, given)
        if found.job is not None:
            found.job.shifted(len(found) - before)

    def replaceable(self, branch: int) -> int:
        found = self.branches.at(branch)
        last = max(len(found) - 1, 0)
        return last if found.job is None else min(found.job.fixed_from, last)

    def goes_on(self, branch: int, constraint: object) -> bool:
        found = self.branches.at(branch)
        return found.output is not None and found.output.is_continued_by(constraint, len(found))

    def drop_cells_from(self, branch: int, length: int) -> None:
        found = self.branches.idle_or_waiting(branch)
        found.sent = min(found.sent, length)

    def length(self, branch: int) -> int:
        return len(self.branches.at(branch))

    def n_cached(self, branch: int) -> int:
        found = self.branches.at(branch)
        return len(found) - found.pending

    def n_to_refill(self, branch: int) -> int:
        return 0

    def n_exclusive_cells(self, branch: int, first: int) -> int:
        return max(self.n_cached(branch) - first, 0)

    def resume(self, job: int, made_room: bool) -> None:
        if job in self._jobs:
            self._jobs[job].resume(made_room)

    def tip(self, branch: int) -> tuple[int, int]:
        found = self.branches.idle(branch)
        return len(found), found.lineage.at(len(found))

    def tokens(self, branch: int) -> npt.NDArray[np.int32]:
        return np.array(self.branches.at(branch).log, np.int32)

    def close(self, branch: int) -> None:
        if branch in self.branches:
            found = self.branches.at(branch)
            if found.job is not None:
                found.job.cancel()
            self.branches.close(found)

    def extend(self, branch: int, tokens: Iterable[int]) -> int:
        found, given = self.branches.idle(branch), self.check_tokens(tokens)
        self.branches.check_positions(found, len(given))
        return self._begun(RemoteExtendJob(self._next_job, found, self, given))

    def generate(self, branch: int, options: RemoteOptions) -> int:
        found = self._started(branch)
        self.check_tokens(options.sampling.logit_bias or (), "logit_bias names")
        if not options.wait_for_room:
            self.branches.check_positions(found, 1, cells=False)
        if isinstance(options.constraint, Thought) and not self.outputs_go_on:
            raise InvalidInput(
                "a server like this cannot be told how many tokens may be reasoning; leave thinking out, or have its "
                "chat template turn reasoning off: Context.branch(template=...)"
            )
        output = output_to_json(options.constraint)
        last = found.output
        was_cut = last is not None and last.began < last.end and last.is_continued_by(options.constraint, len(found))
        if output is not None and was_cut and not self.outputs_go_on:
            raise InvalidInput(
                "this output was cut short, and a server like this cannot go on with it; roll the branch back to where "
                "it began and allow more tokens"
            )
        return self._begun(GenerateJob(self._next_job, found, self, options, output))

    def logits(self, branch: int) -> int:
        return self._begun(LogitsJob(self._next_job, self._started(branch), self))

    def select(self, branch: int, choices: Sequence[Iterable[int]]) -> int:
        found, given = self._started(branch), [self.check_tokens(choice) for choice in choices]
        if not given or not all(given):
            raise InvalidInput("select needs at least one choice, and each needs a token")
        for choice in given:
            self.branches.check_positions(found, len(choice) - 1)
        return self._begun(SelectJob(self._next_job, found, self, given))

    def publish(self, branch: int, name: str, conversations: SavedConversations, marks: Mapping[str, int]) -> int:
        found = self.branches.idle(branch)
        return self._begun(PublishJob(self._next_job, found, self, name, conversations, marks))

    def attach(self, branch: int, name: str) -> int:
        return self._begun(AttachJob(self._next_job, self.branches.idle(branch), self, name))

    def cancel(self, job: int) -> None:
        if job in self._jobs:
            self._jobs[job].cancel()

    def undo(self, job: int, kept: int = 0) -> bool:
        self.cancel(job)
        return self.branches.undo(job, kept)

    def ack(self, job: int, tokens: int) -> None:
        if job in self._jobs:
            self._jobs[job].ack(tokens)

    def take_changes(self) -> Sequence[RemoteLogChange]:
        return self.branches.take_changes()

    def stats(self) -> Counters:
        self.stats_.branches = len(self.branches)
        busy = (job.branch.id for job in self._jobs.values())
        self.stats_.cells_used, self.stats_.cells_shared = self.branches.token_counts(busy)
        return self.stats_

    def set_stream(self, branch: int, rng_stream: int, forks: int) -> None:
        found = self.branches.idle(branch)
        found.stream, found.forks = rng_stream, forks

    def rng_stream(self, branch: int) -> int:
        return self.branches.at(branch).stream

    def live(self) -> Sequence[int]:
        return self.branches.live()

    def set_digests(self, on: bool) -> None:
        pass  # rows of logits stay with the server

    def _count(self, event: ServerEvent) -> None:
        """Updates the counters, also for requests without a job."""
        if isinstance(event, PrefillEvent):
            cached = event.cached or 0
            self.stats_.reused += cached
            self.stats_.prefilled += event.tokens - cached
            self.stats_.tokens += event.tokens - cached
        elif isinstance(event, RetryEvent):
            self.stats_.retries += 1

    def _request(self, job: RemoteJob) -> int:
        """Assigns the number of a job's next request."""
        self._forget(job.request)
        job.request = self._next_request
        self._next_request += 1
        self._requests[job.request] = job
        return job.request

    def _forget(self, request: int) -> None:
        self._requests.pop(request, None)
        self._paused.discard(request)

    def _begun(self, job: RemoteJob) -> int:
        self._jobs[job.id] = job
        self._next_job += 1
        job.begin()
        return job.id

    def _started(self, branch: int) -> BranchLog:
        found = self.branches.idle(branch)
        if not len(found):
            raise InvalidInput(f"branch {branch} holds no token yet: extend it first")
        return found
