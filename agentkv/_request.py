"""One generation: the request, in the engine's terms, and its result, in those of users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import to_thread

from ._commands import check_finished
from ._generation import Generation, Usage
from ._inputs import checked_count, checked_sampling, checked_stop
from ._sampling import Sampling, native_sampling
from ._speculation import Inherit, Speculation, Speculative
from .output._driver import Description, Grammars, checked_description

if TYPE_CHECKING:
    from ._engine import Finished, StepEngine

MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A generation on one branch."""

    branch: int
    max_tokens: int
    stop: list[str]
    sampling: Sampling
    seed: int | None
    strategy: Speculative | None
    speculation: Speculation
    output: Description | None
    grammars: Grammars
    buffer: int | None

    @classmethod
    def checked(
        cls,
        branch: int,
        *,
        max_tokens: int,
        stop: str | Sequence[str] | None,
        sampling: Sampling | None,
        speculative: Speculative | Inherit | None,
        speculation: Speculation,
        output: object,
        grammars: Grammars,
        buffer: int | None = None,
    ) -> GenerationRequest:
        """Raises InvalidInput for anything out of range; draws the seed where one is needed.

        With a `buffer` tokens are handed out as they come, at most so many ahead of the reader.
        """
        strategy = speculation.resolve(speculative)
        limit = checked_count(max_tokens, "max_tokens", 1, MOST_TOKENS)
        stops = checked_stop(stop)
        sampling = checked_sampling(sampling)
        described = None if output is None else checked_description(output)
        seed = sampling.drawn_seed()
        return cls(branch, limit, stops, sampling, seed, strategy, speculation, described, grammars, buffer)

    async def prepare(self) -> None:
        """Compiles what the output must be, the first time, beside the event loop. Raises InvalidInput."""
        if self.output is not None and not self.grammars.known(self.output):
            await to_thread.run_sync(self.grammars.native, self.output, abandon_on_cancel=True)

    def start(self, engine: StepEngine) -> int:
        """Hands it to the engine, on the engine's thread; returns the job."""
        from agentkv_runtime.engine import GenerateOptions

        options = GenerateOptions(
            max_tokens=self.max_tokens,
            stop=self.stop,
            sampling=native_sampling(self.sampling),
            seed=self.seed or 0,
            emit=self.buffer is not None,
            emit_ahead=self.buffer or 0,
            drafter=self.speculation.drafter(self.strategy),
            constraint=self.grammars.of_generation(engine, self.branch, self.output),
        )
        return engine.generate(self.branch, options)

    def finish(self, finished: Finished) -> Generation:
        """The result; raises what ended it, if that was an error."""
        tokens = finished.tokens
        check_finished(finished)
        assert finished.finish_reason is not None
        return Generation(
            text=finished.text.decode("utf-8", "replace"),
            tokens=tokens,
            logprobs=finished.logprobs,
            finish_reason=finished.finish_reason,
            usage=Usage(finished.prompt_tokens, len(tokens)),
            seed=self.seed,
        )
