"""Spans of turns, generations and calls, by OpenTelemetry's conventions for generative AI (in development)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any

from .._types.errors import InvalidInput
from .recording import recorded
from .records import AnyRecord, CallBegan, CallEnded, Conversed, JobBegan, JobEnded, Logged, TurnBegan, TurnEnded

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from .._context.context import Context

PROVIDER = "agentkv"


@asynccontextmanager
async def spans(
    ctx: Context, tracer_provider: TracerProvider | None = None, *, content: bool = False
) -> AsyncIterator[None]:
    """Reports the work of a Context to OpenTelemetry, until the block is left.

    A turn of an agent is a span "invoke_agent", with its generations ("chat", or "text_completion" where a branch has
    no messages) and its calls ("execute_tool") below it. Needs `opentelemetry-api`, and an SDK that exports them.

    Args:
        ctx: an open Context.
        tracer_provider: None for the global one.
        content: whether to report instructions, arguments and results too, which may be private.

    Raises:
        InvalidInput: opentelemetry is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise InvalidInput("spans need OpenTelemetry: pip install 'agentkv-sdk[trace]'") from error
    tracer = trace.get_tracer("agentkv", tracer_provider=tracer_provider)
    async with recorded(ctx, [SpanSink(tracer, ctx.model_info.path.name, content)]):
        yield


class SpanSink:
    """Makes spans of records, which end as turns, generations and calls do.

    Args:
        tracer: OpenTelemetry's tracer.
        model: name of the model in spans.
        content: whether spans include instructions, arguments and results.
    """

    def __init__(self, tracer: Any, model: str, content: bool) -> None:
        self._tracer = tracer
        self._model = model
        self._content = content
        self._clock = time_ns() - perf_counter_ns()
        self._lengths: dict[int, int] = {}
        self._chats: set[int] = set()
        self._jobs: dict[int, tuple[JobBegan, Span]] = {}
        self._turns: dict[int, tuple[TurnBegan, Span]] = {}
        self._calls: dict[tuple[int, str], Span] = {}

    def take(self, records: Sequence[AnyRecord]) -> None:
        """Makes spans of the records, as `Sink.take`."""
        for record in records:
            self._take(record)

    def close(self) -> None:
        """Ends the spans that are still open."""
        open_spans = [span for _, span in (*self._jobs.values(), *self._turns.values())]
        for span in (*self._calls.values(), *open_spans):
            span.end()
        self._jobs.clear()
        self._turns.clear()
        self._calls.clear()

    def _take(self, record: AnyRecord) -> None:
        if isinstance(record, Logged):
            self._lengths[record.branch] = record.kept + len(record.added) // 4
        elif isinstance(record, Conversed) and record.messages:
            self._chats.add(record.branch)
        elif isinstance(record, TurnBegan):
            self._turns[record.turn] = record, self._begin_turn(record)
        elif isinstance(record, TurnEnded) and record.turn in self._turns:
            _, span = self._turns.pop(record.turn)
            self._end(span, record.at, record.error)
        elif isinstance(record, CallBegan):
            self._calls[record.turn, record.call] = self._begin_call(record)
        elif isinstance(record, CallEnded):
            self._end_call(record)
        elif isinstance(record, JobBegan) and record.kind == "generate":
            self._jobs[record.job] = record, self._begin_generation(record)
        elif isinstance(record, JobEnded) and record.job in self._jobs:
            self._end_generation(record)

    def _begin_turn(self, record: TurnBegan) -> Span:
        said = {"gen_ai.system_instructions": record.instructions} if self._content else {}
        return self._begin("invoke_agent", "", record.at, -1, {**said, "agentkv.branch": record.branch})

    def _begin_call(self, record: CallBegan) -> Span:
        told = {"gen_ai.tool.call.arguments": record.arguments} if self._content else {}
        told |= {"gen_ai.tool.name": record.name, "gen_ai.tool.call.id": record.call, "gen_ai.tool.type": "function"}
        return self._begin("execute_tool", record.name, record.at, record.turn, told)

    def _end_call(self, record: CallEnded) -> None:
        span = self._calls.pop((record.turn, record.call), None)
        if span is None:  # it was refused before it began
            began = CallBegan(record.at - record.took, record.turn, record.call, record.name, "")
            span = self._begin_call(began)
        if self._content:
            span.set_attribute("gen_ai.tool.call.result", record.content)
        self._end(span, record.at, "" if record.status == "done" else record.status)

    def _begin_generation(self, record: JobBegan) -> Span:
        turn = next((number for number, (turn, _) in self._turns.items() if turn.branch == record.branch), -1)
        told: dict[str, Any] = {"agentkv.branch": record.branch}
        if (how := record.how) is not None:
            told["gen_ai.request.max_tokens"] = how.max_tokens
            told["gen_ai.request.seed"] = how.seed
            if how.stop:
                told["gen_ai.request.stop_sequences"] = how.stop
            for name in ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"):
                told[f"gen_ai.request.{name}"] = how.sampling[name]
            told["gen_ai.output.type"] = "text" if how.grammar == "" else "json"
        operation = "chat" if record.branch in self._chats else "text_completion"
        return self._begin(operation, self._model, record.at, turn, told)

    def _end_generation(self, record: JobEnded) -> None:
        began, span = self._jobs.pop(record.job)
        span.set_attribute("gen_ai.response.model", self._model)
        span.set_attribute("gen_ai.usage.input_tokens", self._lengths.get(began.branch, 0))
        span.set_attribute("gen_ai.usage.output_tokens", len(record.tokens) // 4)
        if record.reason:
            span.set_attribute("gen_ai.response.finish_reasons", [record.reason])
        if record.first_token:
            span.set_attribute("gen_ai.response.time_to_first_chunk", record.first_token / 1e9)
        self._end(span, record.at, record.error)

    def _begin(self, operation: str, name: str, at: int, turn: int, told: dict[str, Any]) -> Span:
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent = set_span_in_context(self._turns[turn][1]) if turn in self._turns else None
        told = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            **told,
        }
        span: Span = self._tracer.start_span(
            f"{operation} {name}".strip(), parent, SpanKind.INTERNAL, told, start_time=at + self._clock
        )
        return span

    def _end(self, span: Span, at: int, error: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        if error:
            span.set_attribute("error.type", error.partition(":")[0])
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(at + self._clock)
