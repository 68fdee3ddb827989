# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What this server counts of itself, in the form that Prometheus collects."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from casulo.control.events import Event, Kind
from casulo.control.lifecycle import Lifecycle

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.3, 2.5, 5, 10, 30, 60, 300)


class Measures:
    """One set per application, in a registry of its own."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._counter("http_requests", "Answered requests.", "method", "status")
        self._starts = self._counter("starts", "Starts that came to an end.", "runtime", "outcome")
        self._removals = self._counter("removals", "Sandboxes removed.", "runtime", "reason")
        self._ends = self._counter(
            "entrypoint_ends", "Entrypoints that ended by themselves.", "runtime", "reason"
        )
        self._seconds = self._histogram("start_seconds", "From request to Running.", "runtime")
        self._stages = self._histogram("start_stage_seconds", "The stages of starts.", "stage")
        self._sandboxes = self._gauge("sandboxes", "Sandboxes there are.", "runtime", "state")
        self._queue = self._gauge("starts_waiting", "Starts that wait for their turn.", "runtime")
        self._members = self._gauge("pool_members", "Members of pools.", "pool", "state")
        self._drawn = self._gauge("pool_draws", "Creates that a pool could serve, or could not.", "outcome")
        lifecycle.events.listen(self._note)

    def answered(self, method: str, status: int) -> None:
        """One request was answered."""
        self._requests.labels(method, str(status)).inc()

    async def exposition(self) -> bytes:
        """All of it as text, as of now."""
        self._sandboxes.clear()
        for (runtime, state), number in (await self._lifecycle.counts()).items():
            self._sandboxes.labels(runtime, state).set(number)
        for runtime, number in self._lifecycle.queued().items():
            self._queue.labels(runtime).set(number)
        self._count_pools()
        return generate_latest(self._registry)

    def _count_pools(self) -> None:
        pools = self._lifecycle.pools
        self._members.clear()
        for pool in pools.list():
            status = pools.status(pool.name)
            self._members.labels(pool.name, "ready").set(status.ready)
            self._members.labels(pool.name, "in_use").set(status.in_use)
        self._drawn.labels("hit").set(pools.hits)
        self._drawn.labels("miss").set(pools.misses)

    def _note(self, event: Event) -> None:
        runtime = event.sandbox.runtime
        if event.kind is Kind.RUNNING:
            self._starts.labels(runtime, "running").inc()
            self._seconds.labels(runtime).observe(sum(event.stages.values()))
            for stage, seconds in event.stages.items():
                self._stages.labels(stage).observe(seconds)
        elif event.kind is Kind.START_FAILED:
            self._starts.labels(runtime, event.reason).inc()
        elif event.kind is Kind.REMOVED:
            self._removals.labels(runtime, event.reason).inc()
        elif event.kind is Kind.ENDED:
            self._ends.labels(runtime, event.reason).inc()

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(name, says, labels, namespace="casulo", registry=self._registry)

    def _gauge(self, name: str, says: str, *labels: str) -> Gauge:
        return Gauge(name, says, labels, namespace="casulo", registry=self._registry)

    def _histogram(self, name: str, says: str, *labels: str) -> Histogram:
        return Histogram(name, says, labels, namespace="casulo", registry=self._registry, buckets=_SECONDS)
