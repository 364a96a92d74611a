"""One generation: the request in the engine's terms, its result in those of users, and new attempts where the value is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from .._chat.tokenizer import text_of_generation
from .._engine.commands import check_finished
from .._engine.jobs import GenerationJob
from .._model.generate_options import GenerateOptions
from .._types.errors import BranchBusy, OutputIncomplete, OutputInvalid
from .._types.results import FinishReason, Generation, TopLogprob, Usage
from ..output._spec import Asked, asked
from ..output._thought import Thought
from .extend import Moved
from .overflow import run_generation
from .thinking import check_thinking, thought_in, thought_of

if TYPE_CHECKING:
    from .._engine.interface import Finished, StepEngine
    from .._model.drafters import Speculative
    from .._state.branch_state import History
    from .branch import Branch
    from .core import Home


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A generation on one branch."""

    branch: int
    home: Home
    options: GenerateOptions
    strategy: Speculative | None
    output: Asked[Any]
    buffer: int | None
    wait_for_room: bool
    made: int
    output_made: int
    begun: bytes = b""
    thought: Thought | None = None

    @classmethod
    def checked(
        cls,
        branch: int,
        home: Home,
        options: GenerateOptions,
        output: object,
        *,
        wait_for_room: bool,
        buffer: int | None = None,
        made: int = 0,
        output_made: int = 0,
    ) -> GenerationRequest:
        """Raises InvalidInput for an output that there is not, or that goes with none of the options.

        With a `buffer` tokens are handed out as they come, at most so many ahead of the reader. `wait_for_room`: where
        there is none, whoever awaits the job has some made. `made`, `output_made`: so many tokens at the end of the
        branch are of this generation already, as penalties count them, and of its output.
        """
        strategy = home.model.speculation.resolve(options.speculative)
        wanted = asked(output)
        check_thinking(options.thinking, wanted.constraint)
        return cls(branch, home, options, strategy, wanted, buffer, wait_for_room, made, output_made)

    def again(self, attempt: int) -> GenerationRequest:
        """The same request with other draws."""
        return replace(self, options=self.options.for_attempt(attempt))

    def after(self, history: History) -> GenerationRequest:
        """The same request behind these tokens: what they begin of a character, it has in its text, and what they begin
        of a thought is in its budget's sight."""
        thought = thought_of(self.home, history, self.options.thinking, self.output.constraint)
        return replace(self, begun=self.home.chat.spelling.begun(history.log), thought=thought)

    async def prepare(self) -> None:
        """Compiles what the output must be, the first time, beside the event loop. Raises InvalidInput."""
        constraint, grammars = self.output.constraint, self.home.grammars
        if constraint is not None and not grammars.known(constraint):
            await to_thread.run_sync(grammars.native, constraint, abandon_on_cancel=True)

    def start(self, engine: StepEngine) -> int:
        """Hands it to the engine, on the engine's thread; returns the job."""
        options = self.home.model.generate_options(
            max_tokens=self.options.max_tokens,
            stop=list(self.options.stop),
            sampling=self.options.sampling,
            seed=self.options.seed or 0,
            emit=self.buffer is not None,
            emit_ahead=self.buffer or 0,
            wait_for_room=self.wait_for_room,
            drafter=self.home.model.speculation.drafter(self.strategy),
            constraint=self.home.grammars.of_generation(engine, self.branch, self.thought or self.output.constraint),
            top_logprobs=self.options.top_logprobs,
            made=self.made,
            output_made=self.output_made,
        )
        return engine.generate(self.branch, options)

    def finish(self, finished: Finished) -> Generation[Any]:
        """The result; raises what ended it, if that was an error."""
        check_finished(finished)
        assert finished.finish_reason is not None
        text = text_of_generation(self.begun + finished.text, finished.finish_reason)
        return self._generation(finished, len(finished.tokens), text, finished.finish_reason)

    def cut(self, finished: Finished, kept: int) -> Generation[Any]:
        """The result where only the first tokens were kept: what came after them, an error too, never was."""
        text = text_of_generation(self.begun + self.home.chat.spelling.spelled(finished.tokens[:kept]), "cancelled")
        return self._generation(finished, kept, text, "cancelled")

    def _whole(self, finished: Finished) -> str:
        """The text of the output, with what earlier generations made of it."""
        began = finished.output_began if finished.output_began >= 0 else finished.prompt_tokens
        history, spelled = self.home.states[self.branch], self.home.chat.spelling.spelled
        earlier = history.log[began : finished.prompt_tokens]
        text, said = spelled(earlier) + finished.text, [*earlier, *finished.tokens]
        if self.thought is not None and not self.thought.in_message:
            text = text[len(spelled(said[: thought_in(self.home, history, began, said)])) :]
        return text.decode("utf-8", "replace")

    def _generation(self, finished: Finished, kept: int, text: str, reason: FinishReason) -> Generation[Any]:
        whole = partial(self._whole, finished) if self.output.constraint is not None else lambda: text
        value, fault = self.output.outcome(whole, reason)
        return Generation(
            text=text,
            tokens=finished.tokens[:kept],
            logprobs=finished.logprobs[:kept],
            finish_reason=reason,
            usage=Usage(max(finished.prompt_tokens, 0), kept),  # more may have left from before it than there was
            seed=self.options.seed,
            top_logprobs=[self.likely(top) for top in finished.top_logprobs[:kept]],
            seconds=finished.seconds,
            first_token_seconds=finished.first_token_seconds,
            _value=value,
            _fault=fault,
        )

    def likely(self, top: Iterable[tuple[int, float]]) -> tuple[TopLogprob, ...]:
        """The likeliest tokens in a place, spelled out."""
        return tuple(TopLogprob(token, self.home.chat.spelling.token(token), logprob) for token, logprob in top)


async def generated(branch: Branch, request: GenerationRequest, retries: int) -> Generation[Any]:
    """The generation of a request, or of one of as many others after it as `retries` says.

    Raises what the last value was refused with, after forgetting it; where another task went on with the branch
    meanwhile, it stays.
    """
    generation = await run_generation(branch, GenerationJob(request.start, request.finish))
    for attempt in range(1, retries + 1):
        if not isinstance(generation._fault, OutputInvalid) or not _is_last(generation, branch):
            break
        again, forget = request.again(attempt), _forgetting(generation, branch)

        def start(
            engine: StepEngine, again: GenerationRequest = again, forget: Callable[[StepEngine], None] = forget
        ) -> int:
            forget(engine)
            return again.start(engine)

        try:
            generation = await run_generation(branch, GenerationJob(start, again.finish))
        except (Moved, BranchBusy):
            break
    fault = generation._fault
    if fault is None or isinstance(fault, OutputIncomplete):
        return generation
    if _is_last(generation, branch):
        with suppress(Moved, BranchBusy):
            await branch._handle.call(_forgetting(generation, branch))
    raise fault


def _forgetting(generation: Generation[Any], branch: Branch) -> Callable[[StepEngine], None]:
    """Takes back what is the last of a branch now. Raises Moved or BranchBusy where another task was quicker."""
    number, end, length = branch.id, branch._handle.state.end, generation.usage.prompt_tokens

    def forget(engine: StepEngine) -> None:
        if engine.tip(number) != end:
            raise Moved
        engine.rollback(number, length)

    return forget


def _is_last(generation: Generation[Any], branch: Branch) -> bool:
    """Is what it made still the end of the branch, for us to take back?"""
    try:
        branch._handle.check_free()
    except BranchBusy:
        return False
    return not branch.offloaded and len(branch) == generation.usage.total_tokens
