"""Counters of a server in Prometheus' text format (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .._types.errors import AgentKVError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from .._context.context import Context
    from .models import Models

_GAUGES = (
    "branches",
    "cells",
    "cells_used",
    "cells_shared",
    "cells_retained",
    "capacity",
    "kv_bytes",
    "offload_memory_bytes",
    "offload_disk_bytes",
)
_COUNTERS = (
    "steps",
    "tokens",
    "prefilled",
    "refed",
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


class Counted:
    """Counters of one model since the server started, of all Contexts that it had.

    Attributes:
        opens: number of Contexts.
    """

    def __init__(self) -> None:
        self.opens = 0
        self._context: Context | None = None
        self._before = dict.fromkeys(_COUNTERS, 0.0)
        self._now = dict.fromkeys(_COUNTERS, 0.0)

    def begin(self, context: Context) -> None:
        """Counts a Context that was just opened; the one before is closed."""
        if context is self._context:
            return
        self._before, self._now = dict(self.totals()), dict.fromkeys(_COUNTERS, 0.0)
        self._context, self.opens = context, self.opens + 1

    def read(self) -> None:
        """Reads the counters of the open Context; of a closed one the last that were read stay."""
        if self._context is not None:
            with suppress(AgentKVError):
                stats = self._context.stats
                self._now = {name: getattr(stats, name) for name in _COUNTERS}

    def totals(self) -> Mapping[str, float]:
        """Counters of all Contexts, as of the last `read`."""
        return {name: self._before[name] + self._now[name] for name in _COUNTERS}


class Metrics:
    """Counters and histograms of one server, since it started. With several models each has the label `model`."""

    def __init__(self, models: Models) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfModels(models))
        self._labels = ["model"] if models.several else []
        self._requests = Counter(
            "agentkv_requests",
            "Requests that were answered.",
            ["path", "status", *self._labels],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "agentkv_request_seconds",
            "From a request to the end of its answer.",
            ["path", *self._labels],
            buckets=_SECONDS,
            registry=self._registry,
        )

        self.ignored = Counter(
            "agentkv_ignored", "What requests asked for and was left out.", ["what"], registry=self._registry
        )

    def answered(self, path: str, status: str, model: str, seconds: float) -> None:
        """Counts one request; `model` is empty where none was chosen."""
        label = [model] if self._labels else []
        self._requests.labels(path, status, *label).inc()
        self._seconds.labels(path, *label).observe(seconds)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format, encoded."""
        return generate_latest(self._registry)


class _OfModels(Collector):
    """Gauges and counters of the Contexts and of admission, read at each scrape."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        models, admission = self._models, self._models.admission
        labels = ["model"] if models.several else []
        gauges = [
            GaugeMetricFamily(f"agentkv_{name}", f"`{name}` of the Context's stats.", labels=labels) for name in _GAUGES
        ]
        counters = [
            CounterMetricFamily(f"agentkv_{name}", f"`{name}` of the Context's stats.", labels=labels)
            for name in _COUNTERS
        ]
        kept = GaugeMetricFamily("agentkv_conversations_kept", "Conversations that wait.", labels=labels)
        opened = GaugeMetricFamily("agentkv_model_open", "Whether the model is open.", labels=labels)
        opens = CounterMetricFamily("agentkv_model_opens", "How often the model was opened.", labels=labels)
        for model in models.all:
            label, server = [model.name] if labels else [], model.server
            kept.add_metric(label, 0 if server is None else len(server.cache))
            if model.is_adapter:  # its Context is counted already
                continue
            model.counted.read()
            for name, gauge in zip(_GAUGES, gauges, strict=True):
                gauge.add_metric(label, 0 if server is None else getattr(server.context.stats, name))
            for name, counter in zip(_COUNTERS, counters, strict=True):
                counter.add_metric(label, model.counted.totals()[name])
            opened.add_metric(label, server is not None)
            opens.add_metric(label, model.counted.opens)
        yield from gauges
        yield from counters
        yield GaugeMetricFamily("agentkv_requests_running", "Requests at work.", admission.running)
        yield GaugeMetricFamily("agentkv_requests_waiting", "Requests that wait.", admission.waiting)
        yield kept
        if labels:
            yield opened
            yield opens
