"""One generation: the request in the engine's terms, its public result, and retries if the value is rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from anyio import to_thread

from .._chat.tokenizer import text_of_generation
from .._engine.commands import check_finished
from .._engine.jobs import GenerationJob
from .._model.generate_options import GenerateOptions
from .._types.errors import BranchBusy, OutputIncomplete, OutputInvalid
from .._types.results import FinishReason, Generation, TopLogprob, Usage, fault_of
from ..output._spec import OutputSpec, output_spec
from ..output._thought import Thought
from .extend import BranchChanged
from .overflow import run_generation
from .thinking import check_thinking, thought_in, thought_of

if TYPE_CHECKING:
    from .._engine.interface import FinishedJob, StepEngine
    from .._model.drafters import Speculative
    from .._state.branch_state import BranchState
    from .branch import Branch
    from .core import ContextCore


WaitsFor: TypeAlias = Literal["nothing", "cells", "room"]
"""What a generation waits for: cells of others, or also what a policy makes of its branch."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A generation on one branch."""

    branch: int
    core: ContextCore
    options: GenerateOptions
    strategy: Speculative | None
    output: OutputSpec[Any]
    buffer: int | None
    waits_for: WaitsFor
    n_generated: int
    n_output: int
    continues: bool = False
    begun: bytes = b""
    thought: Thought | None = None

    @classmethod
    def checked(
        cls,
        branch: int,
        core: ContextCore,
        options: GenerateOptions,
        output: object,
        *,
        waits_for: WaitsFor,
        buffer: int | None = None,
        n_generated: int = 0,
        n_output: int = 0,
        continues: bool = False,
    ) -> GenerationRequest:
        """Validates a request. Raises InvalidInput for an unsupported output, or one that does not go with the options.

        With a `buffer` tokens are handed out as they come, at most `buffer` ahead of the reader. `waits_for`: the job
        waits where there is no room, which its awaiting task makes. `n_generated`, `n_output`: number of tokens at the
        end of the branch that count as this generation's for penalties, and as its output's. `continues`: it goes on
        with the last generation of the branch, which was ended before its end.
        """
        strategy = core.model.speculation.resolve(options.speculative)
        spec = output_spec(output)
        check_thinking(options.thinking, spec.constraint)
        return cls(branch, core, options, strategy, spec, buffer, waits_for, n_generated, n_output, continues)

    def for_attempt(self, attempt: int) -> GenerationRequest:
        """The request of a retry, with another seed."""
        return replace(self, options=self.options.for_attempt(attempt))

    def after(self, state: BranchState) -> GenerationRequest:
        """The request bound to a history: an incomplete character or thought at its end is continued."""
        thought = thought_of(self.core, state, self.options.thinking, self.output.constraint)
        return replace(self, begun=self.core.chat.detokenizer.begun(state.tokens), thought=thought)

    async def prepare(self) -> None:
        """Compiles the output's constraint on first use, off the event loop. Raises InvalidInput."""
        constraint, compiler = self.output.constraint, self.core.compiler
        if constraint is not None and not compiler.is_compiled(constraint):
            await to_thread.run_sync(compiler.compile, constraint, abandon_on_cancel=True)

    def start(self, engine: StepEngine) -> int:
        """Submits the request to the engine, on the engine's thread; returns the job's id."""
        compiler, description = self.core.compiler, self.thought or self.output.constraint
        make_constraint = compiler.for_continuation if self.continues else compiler.for_generation
        options = self.core.model.generate_options(
            max_tokens=self.options.max_tokens,
            stop=list(self.options.stop),
            sampling=self.options.sampling,
            seed=self.options.seed or 0,
            emit=self.buffer is not None,
            emit_ahead=self.buffer or 0,
            wait_for_room=self.waits_for != "nothing",
            wait_for_cells_alone=self.waits_for == "cells",
            drafter=self.core.model.speculation.drafter(self.strategy),
            constraint=make_constraint(engine, self.branch, description),
            top_logprobs=self.options.top_logprobs,
            made=self.n_generated,
            output_made=self.n_output,
        )
        return engine.generate(self.branch, options)

    def finish(self, finished: FinishedJob) -> Generation[Any]:
        """Converts the engine's report to the result; raises the error that ended it."""
        check_finished(finished)
        assert finished.finish_reason is not None
        text = text_of_generation(self.begun + finished.text, finished.finish_reason)
        return self._generation(finished, len(finished.tokens), text, finished.finish_reason)

    def truncated(self, finished: FinishedJob, kept: int) -> Generation[Any]:
        """The result if only the first `kept` tokens stay: later ones, and an error after them, are ignored."""
        text = text_of_generation(
            self.begun + self.core.chat.detokenizer.visible_bytes(finished.tokens[:kept]), "cancelled"
        )
        return self._generation(finished, kept, text, "cancelled")

    def _whole_output(self, finished: FinishedJob) -> str:
        """Text of the whole output, including the parts made by earlier generations."""
        began = finished.output_began if finished.output_began >= 0 else finished.prompt_tokens
        state, bytes_of = self.core.states[self.branch], self.core.chat.detokenizer.visible_bytes
        earlier = state.tokens[began : finished.prompt_tokens]
        text, tokens = bytes_of(earlier) + finished.text, [*earlier, *finished.tokens]
        if self.thought is not None and not self.thought.in_message:
            text = text[len(bytes_of(tokens[: thought_in(self.core, state, began, tokens)])) :]
        return text.decode("utf-8", "replace")

    def _generation(self, finished: FinishedJob, kept: int, text: str, reason: FinishReason) -> Generation[Any]:
        whole = partial(self._whole_output, finished) if self.output.constraint is not None else lambda: text
        value, fault = self.output.outcome(whole, reason)
        return Generation(
            text=text,
            tokens=finished.tokens[:kept],
            logprobs=finished.logprobs[:kept],
            finish_reason=reason,
            usage=Usage(max(finished.prompt_tokens, 0), kept),  # more may have left from before it than there was
            seed=self.options.seed,
            top_logprobs=[self.top_logprobs_of(top) for top in finished.top_logprobs[:kept]],
            seconds=finished.seconds,
            first_token_seconds=finished.first_token_seconds,
            _value=value,
            _fault=fault,
        )

    def top_logprobs_of(self, top: Iterable[tuple[int, float]]) -> tuple[TopLogprob, ...]:
        """Converts top tokens (id, logprob) to the public type with their texts."""
        return tuple(TopLogprob(token, self.core.chat.detokenizer.text_of(token), logprob) for token, logprob in top)


async def generate_with_retries(branch: Branch, request: GenerationRequest, retries: int) -> Generation[Any]:
    """Runs a request, and up to `retries` more while its value is rejected.

    Raises OutputInvalid for the last value, after rolling it back; if another task has changed the branch meanwhile,
    its tokens stay.
    """
    generation = await run_generation(branch, GenerationJob(request.start, request.finish))
    for attempt in range(1, retries + 1):
        if not isinstance(fault_of(generation), OutputInvalid) or not _is_last(generation, branch):
            break
        again, forget = request.for_attempt(attempt), _forgetting(generation, branch)

        def start(
            engine: StepEngine, again: GenerationRequest = again, forget: Callable[[StepEngine], None] = forget
        ) -> int:
            forget(engine)
            return again.start(engine)

        try:
            generation = await run_generation(branch, GenerationJob(start, again.finish))
        except (BranchChanged, BranchBusy):
            break
    fault = fault_of(generation)
    if fault is None or isinstance(fault, OutputIncomplete):
        return generation
    if _is_last(generation, branch):
        with suppress(BranchChanged, BranchBusy):
            await branch._handle.call(_forgetting(generation, branch))
    try:
        raise fault
    finally:
        del fault, generation  # no cycle with the traceback, which would keep the branch until it is collected


def _forgetting(generation: Generation[Any], branch: Branch) -> Callable[[StepEngine], None]:
    """Makes a call that rolls back the last generation. The call raises BranchChanged if the branch has changed
    since."""
    number, end, length = branch.id, branch._handle.state.tip, generation.usage.prompt_tokens

    def forget(engine: StepEngine) -> None:
        if engine.tip(number) != end:
            raise BranchChanged
        engine.rollback(number, length)

    return forget


def _is_last(generation: Generation[Any], branch: Branch) -> bool:
    """Returns whether the generation is still the end of the branch, and can be rolled back."""
    try:
        branch._handle.check_free()
    except BranchBusy:
        return False
    return not branch.offloaded and len(branch) == generation.usage.total_tokens
