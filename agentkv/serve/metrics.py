"""Counters of a server in Prometheus' text format (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from .server import Server

_GAUGES = ("branches", "cells", "cells_used", "cells_shared", "cells_retained", "capacity", "kv_bytes")
_COUNTERS = (
    "steps",
    "tokens",
    "prefilled",
    "generated",
    "reused",
    "recalled",
    "drafted",
    "accepted",
    "prefix_cache_hits",
    "prefix_cache_tokens",
    "prefix_cache_bytes",
    "prefix_cache_written",
    "offloads",
    "forward_seconds",
)
_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counters and histograms of one server, since it started."""

    def __init__(self, server: Server) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfContext(server))
        self.requests = Counter(
            "agentkv_requests", "Requests that were answered.", ["path", "status"], registry=self._registry
        )
        self.seconds = Histogram(
            "agentkv_request_seconds",
            "From a request to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )

        self.ignored = Counter(
            "agentkv_ignored", "What requests asked for and was left out.", ["what"], registry=self._registry
        )

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format, encoded."""
        return generate_latest(self._registry)


class _OfContext(Collector):
    """Gauges and counters of the Context and of admission, read at each scrape."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterable[Metric]:
        stats, admission = self._server.context.stats, self._server.admission
        for name in _GAUGES:
            yield GaugeMetricFamily(f"agentkv_{name}", f"`{name}` of the Context's stats.", getattr(stats, name))
        for name in _COUNTERS:
            yield CounterMetricFamily(f"agentkv_{name}", f"`{name}` of the Context's stats.", getattr(stats, name))
        yield GaugeMetricFamily("agentkv_requests_running", "Requests at work.", admission.running)
        yield GaugeMetricFamily("agentkv_requests_waiting", "Requests that wait.", admission.waiting)
        yield GaugeMetricFamily("agentkv_conversations_kept", "Conversations that wait.", len(self._server.cache))
