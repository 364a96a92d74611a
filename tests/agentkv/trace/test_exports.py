"""Traces for other tools: OpenTelemetry's spans and Perfetto's file format, read by their own packages."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import agentkv as kv
from agentkv import trace
from agentkv.trace.perfetto import perfetto_of
from tests.agentkv.agents.conftest import TWO_CALLS, OpenDesk, as_tool, desk_agent

pytestmark = pytest.mark.anyio


def exporting() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def operation(span: ReadableSpan) -> str:
    assert span.attributes is not None
    return str(span.attributes["gen_ai.operation.name"])


@pytest.mark.parametrize("content", [False, True])
async def test_opentelemetry_hears_of_turns_generations_and_calls(open_desk: OpenDesk, content: bool) -> None:
    async def weather(city: str) -> dict[str, int]:
        if city == "Brasno":
            raise OSError("no answer")
        return {"temp": 3}

    provider, exporter = exporting()
    agent = desk_agent(tools=[as_tool("weather", weather)])
    async with open_desk() as ctx, trace.spans(ctx, provider, content=content):
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, TWO_CALLS)
        await (await ctx.branch("Once upon a time")).generate(
            max_tokens=4, sampling=kv.Sampling(temperature=0.5, seed=3), stop="never"
        )
    spans = exporter.get_finished_spans()
    (turn,) = [span for span in spans if operation(span) == "invoke_agent"]
    calls = [span for span in spans if operation(span) == "execute_tool"]
    chats = [span for span in spans if operation(span) == "chat"]
    (text,) = [span for span in spans if operation(span) == "text_completion"]
    assert turn.name == "invoke_agent"
    assert {span.name for span in calls} == {"execute_tool weather"}
    assert {span.name for span in chats} == {"chat nano"}
    assert len(chats) == run.rounds
    for span in (*calls, *chats):
        assert span.parent is not None
        assert span.parent.span_id == turn.context.span_id
        assert turn.start_time <= span.start_time <= span.end_time <= turn.end_time  # type: ignore[operator]
    assert text.parent is None
    assert text.attributes is not None
    told = dict(text.attributes)
    assert told["gen_ai.provider.name"] == "agentkv"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "nano"
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.seed"] == 3
    assert told["gen_ai.request.stop_sequences"] == ("never",)
    assert told["gen_ai.usage.output_tokens"] == 4
    assert told["gen_ai.usage.input_tokens"] == 7
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    failed = {span.attributes["error.type"] for span in calls if span.status.status_code is StatusCode.ERROR}  # type: ignore[index]
    assert failed == {"failed"}
    said = {name for span in spans for name in span.attributes or {}}
    private = {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "gen_ai.system_instructions"}
    assert (said & private) == (private if content else set())


async def test_spans_of_what_is_cut_off_end(open_desk: OpenDesk) -> None:
    provider, exporter = exporting()
    async with open_desk() as ctx:
        branch = await ctx.branch("Once upon a time")
        async with trace.spans(ctx, provider):
            stream = branch.stream(max_tokens=500, buffer=1)
            await stream.__aenter__()
        await stream.__aexit__(None, None, None)
    assert [operation(span) for span in exporter.get_finished_spans()] == ["text_completion"]


async def test_perfetto_reads_the_tracks(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    agent = desk_agent("weather")
    async with open_desk() as ctx, trace.record(ctx, path):
        branch = await agent.trunk(ctx)
        await agent.run(branch, TWO_CALLS)
        await branch.rollback(4)
        steps = ctx.stats.steps
    read = Trace.FromString(perfetto_of(path))
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in read.packet
        if packet.HasField("track_descriptor")
    }
    names = {track.name for track in tracks.values()}
    assert {"steps", "cells used", "K/V bytes", f"branch {branch.id}", "turns and calls"} <= names
    events = [(packet.timestamp, packet.track_event) for packet in read.packet if packet.HasField("track_event")]
    assert {event.track_uuid for _, event in events} <= set(tracks)
    begins = [event for _, event in events if event.type == event.TYPE_SLICE_BEGIN]
    ends = [event for _, event in events if event.type == event.TYPE_SLICE_END]
    assert sorted(event.name for event in begins) == sorted(event.name for event in ends)
    assert sum(event.name == "step" for event in begins) == steps
    assert {"weather", "turn", "generate", "extend"} <= {event.name for event in begins}
    assert {"create", "rollback"} <= {event.name for _, event in events if event.type == event.TYPE_INSTANT}
    assert all(timestamp > 0 for timestamp, _ in events)
