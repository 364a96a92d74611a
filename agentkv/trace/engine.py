"""An engine that records its calls and their results."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence, Sized
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any, cast

import xxhash

from .._context.prefill import created
from .._types.sampling import Sampling
from .records import ADAPTER, AnyRecord, Branched, GenerateParams, JobBegan, JobEnded, Logged, Noted, Stepped, Verb

if TYPE_CHECKING:
    from agentkv_runtime.engine import GenerateOptions, Pin, StoredBranch

    from .._engine.interface import AdapterEngine, FinishedJob, LogChange, StepEngine, StepReport

Put = Callable[[AnyRecord], None]
GrammarText = Callable[[object], str | None]
_SAMPLING = [name for name in Sampling.model_fields if name != "seed"]


class TracedEngine:
    """Wraps a StepEngine and records its verbs, jobs, steps and log changes. Used on the engine's thread.

    Args:
        engine: the engine that does the work; attributes that are not defined here are its.
        put: receives the records.
        grammar_text: returns the text of a native constraint's grammar; None where it has none.
        adapter_name: returns the name of a LoRA adapter.
    """

    def __init__(
        self, engine: StepEngine, put: Put, grammar_text: GrammarText, adapter_name: Callable[[int], str]
    ) -> None:
        self.engine = engine
        self.put = put
        self._grammar_text = grammar_text
        self._adapter_name = adapter_name
        self._branch_of: dict[int, int] = {}  # of running jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def create(self, tokens: Iterable[int] | None = None, adapter: int = 0) -> tuple[int, int]:
        branch, reused = created(self.engine, tokens, adapter)
        self._branched("create", -1, [branch], reused)
        self._adapted(branch, [(0, adapter)])
        return branch, reused

    def create_prompt(
        self, tokens: Iterable[int], pin: int | None, parts_at: int, rng_stream: int, adapter: int = 0
    ) -> tuple[int, int]:
        prompts = cast("AdapterEngine", self.engine)
        given = () if adapter == 0 else (adapter,)
        branch, reused = prompts.create_prompt(tokens, pin, parts_at, rng_stream, *given)
        self._branched("create", -1, [branch], reused)
        self._adapted(branch, [(0, adapter)])
        self._verb("set_stream", branch, rng_stream, 0)  # streams are taken before branches are made
        return branch, reused

    def set_adapter(self, branch: int, adapter: int) -> None:
        cast("AdapterEngine", self.engine).set_adapter(branch, adapter)
        self._adapted(branch, [(self.engine.length(branch), adapter)])

    def fork(self, branch: int, n: int) -> list[int]:
        made = self.engine.fork(branch, n)
        self._branched("fork", branch, made)
        return made

    def copy(self, branch: int) -> int:
        made = self.engine.copy(branch)
        self._branched("copy", branch, [made])
        return made

    def restore(self, pin: int | None, stored: Sequence[StoredBranch]) -> list[int]:
        made = self.engine.restore(pin, stored)
        self._branched("restore", -1, made)
        for branch, image in zip(made, stored, strict=True):
            for first, last, at, for_room in image.forgotten:
                self._verb("forgotten", branch, first, last, at, int(for_room))
            self._adapted(branch, image.adapters)
        return made

    def rollback(self, branch: int, length: int, epoch: int | None = None, keep_forgotten: bool = False) -> None:
        self.engine.rollback(branch, length, epoch, keep_forgotten)
        self._verb("rollback", branch, length, int(keep_forgotten))

    def adopt(self, dst: int, src: int) -> None:
        self.engine.adopt(dst, src)
        if dst != src:
            self._verb("adopt", dst, src)

    def forget(self, branch: int, first: int, last: int, for_room: bool = False) -> int:
        free = self.engine.forget(branch, first, last, for_room)
        self._verb("forget", branch, first, last, int(for_room))
        return free

    def replace(self, branch: int, first: int, last: int, tokens: Iterable[int]) -> None:
        given = list(tokens)
        self.engine.replace(branch, first, last, given)
        self._verb("replace", branch, first, last, len(given))

    def drop_cells_from(self, branch: int, length: int) -> None:
        self.engine.drop_cells_from(branch, length)
        self._verb("uncache", branch, length)

    def set_stream(self, branch: int, rng_stream: int, forks: int) -> None:
        self.engine.set_stream(branch, rng_stream, forks)
        self._verb("set_stream", branch, rng_stream, forks)

    def offload(self, branches: Sequence[int], pin: int) -> None:
        self.engine.offload(branches, pin)
        for branch in branches:
            self._verb("set_aside", branch)

    def reload(self, branch: int, pin: int | None) -> None:
        self.engine.reload(branch, pin)
        self._verb("bring_back", branch)

    def pin(self, branches: Sequence[int]) -> tuple[Pin, Sequence[StoredBranch]]:
        held = self.engine.pin(branches)
        for branch in branches:
            self._verb("save", branch)
        return held

    def compact(self, retain: int | None = None) -> int:
        cells = self.engine.compact(retain)
        self._verb("compact", -1, cells)
        return cells

    def close(self, branch: int) -> None:
        self.engine.close(branch)
        self._verb("close", branch)

    def extend(self, branch: int, tokens: Iterable[int]) -> int:
        job = self.engine.extend(branch, tokens)
        return self._began(job, branch, "extend", len(tokens) if isinstance(tokens, Sized) else 0)

    def generate(self, branch: int, options: GenerateOptions) -> int:
        job = self.engine.generate(branch, options)
        return self._began(job, branch, "generate", 0, self._how(options))

    def logits(self, branch: int) -> int:
        return self._began(self.engine.logits(branch), branch, "logits")

    def select(self, branch: int, choices: Sequence[Iterable[int]]) -> int:
        given = [list(choice) for choice in choices]
        job = self.engine.select(branch, given)
        return self._began(job, branch, "select", choices=[_int32(choice) for choice in given])

    def cancel(self, job: int) -> None:
        self.engine.cancel(job)
        self._verb("cancel", self._branch_of.get(job, -1), job)

    def undo(self, job: int, kept: int = 0) -> bool:
        taken = self.engine.undo(job, kept)
        self._verb("take_back", self._branch_of.get(job, -1), job, kept, int(taken))
        return taken

    def step(self) -> StepReport:
        report = self.engine.step()
        if report.forwards:
            self.put(
                Stepped(
                    now() - int(report.seconds * 1e9),
                    int(report.seconds * 1e9),
                    int(report.forward_seconds * 1e9),
                    int(report.draft_seconds * 1e9),
                    report.forwards,
                    report.shares,
                )
            )
        self._reported(report)
        return report

    def settle(self) -> StepReport:
        report = self.engine.settle()
        self._reported(report)
        return report

    def take_changes(self) -> Sequence[LogChange]:
        changes = self.engine.take_changes()
        for change in changes:
            self.put(Logged(now(), change.branch, change.kept, change.appended))
        return changes

    def _reported(self, report: StepReport) -> None:
        for job in report.out_of_room:
            self.put(Noted(now(), self._branch_of.get(job, -1), "waits for room", ""))
        for finished in report.finished:
            self._branch_of.pop(finished.job, None)
            error = finished.error
            self.put(
                JobEnded(
                    now(),
                    finished.job,
                    finished.finish_reason or "",
                    "" if error is None else f"{type(error).__name__}: {error}",
                    _int32(finished.tokens),
                    _digests(finished),
                    int(finished.first_token_seconds * 1e9),
                    finished.scores,
                    finished.output_began,
                )
            )

    def _branched(self, how: str, source: int, branches: list[int], reused: int = 0) -> None:
        streams = [self.engine.rng_stream(branch) for branch in branches]
        self.put(Branched(now(), how, source, branches, streams, reused))

    def _adapted(self, branch: int, spans: Sequence[tuple[int, int]]) -> None:
        for first, adapter in spans:
            if adapter:
                self.put(Noted(now(), branch, ADAPTER, f"{self._adapter_name(adapter)} from token {first} on"))

    def _verb(self, name: str, branch: int, *numbers: int) -> None:
        self.put(Verb(now(), name, branch, list(numbers)))

    def _began(
        self,
        job: int,
        branch: int,
        kind: str,
        tokens: int = 0,
        how: GenerateParams | None = None,
        choices: Sequence[bytes] = (),
    ) -> int:
        self._branch_of[job] = branch
        self.put(JobBegan(now(), job, branch, kind, tokens, how, list(choices)))
        return job

    def _how(self, options: GenerateOptions) -> GenerateParams:
        sampling = options.sampling
        return GenerateParams(
            options.max_tokens,
            list(options.stop),
            {name: getattr(sampling, name) for name in _SAMPLING},
            options.seed,
            "" if options.constraint is None else self._grammar_text(options.constraint),
            options.drafter is not None,
            options.emit,
            options.made,
            options.output_made,
        )


def _int32(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()


def _digests(finished: FinishedJob) -> bytes:
    if finished.kind != "logits" or finished.logits is None:
        return finished.digests
    return xxhash.xxh3_64_digest(finished.logits.tobytes())
