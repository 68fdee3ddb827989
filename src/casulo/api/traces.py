# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Traces of starts for OpenTelemetry: one span from request to Running, with a child for each milestone.

A request that brings a `traceparent` is the parent. Sending happens in a thread of the library, in
batches; a collector that is away costs nothing but its spans.
"""

from __future__ import annotations

from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from structlog.contextvars import get_contextvars

from casulo.control.events import Event, Events, Kind
from casulo.model.errors import Code, Unsupported
from casulo.settings import OtelSettings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

parent: ContextVar[str] = ContextVar("parent", default="")
"""The `traceparent` of the request that the running task serves; tasks that it starts inherit it."""

_EXPORT_SECONDS = 5.0


class Traces:
    """Listens to events and makes spans of them."""

    def __init__(self, provider: TracerProvider, events: Events) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("casulo")
        events.listen(self._note)

    @classmethod
    def of(cls, settings: OtelSettings, events: Events) -> Self | None:
        """By the settings; None where traces are not wanted. Unsupported when the library is not there."""
        if not settings.enabled:
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise Unsupported(
                f"[otel] is enabled, but its library is not installed: {error}",
                code=Code.HOST_UNSUPPORTED,
                hint="pip install 'casulo[otel]'",
            ) from error
        provider = TracerProvider(resource=Resource.create({"service.name": settings.service_name}))
        url = settings.endpoint.rstrip("/") + "/v1/traces"
        exporter = OTLPSpanExporter(endpoint=url, timeout=_EXPORT_SECONDS)
        every = settings.export_interval_millis
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=every))
        return cls(provider, events)

    def close(self) -> None:
        """Send what is left. Blocking."""
        self._provider.shutdown()

    def _note(self, event: Event) -> None:
        if event.kind not in (Kind.RUNNING, Kind.START_FAILED) or not event.stages:
            return
        from opentelemetry import trace

        end = int(event.at.timestamp() * 1e9)
        moment = end - _nanoseconds(sum(event.stages.values()))
        whole = self._tracer.start_span(
            "sandbox.create", _context_of(parent.get()), attributes=_facts(event), start_time=moment
        )
        inside = trace.set_span_in_context(whole)
        for stage, seconds in event.stages.items():
            span = self._tracer.start_span(f"sandbox.create {stage}", inside, start_time=moment)
            moment += _nanoseconds(seconds)
            span.end(moment)
        if event.kind is Kind.START_FAILED:
            whole.set_status(trace.Status(trace.StatusCode.ERROR, event.reason))
        whole.end(max(end, moment))


def _facts(event: Event) -> dict[str, Any]:
    sandbox = event.sandbox
    return {
        "casulo.sandbox.id": sandbox.id,
        "casulo.runtime": sandbox.runtime,
        "casulo.isolation": str(sandbox.spec.isolation),
        "casulo.image": sandbox.spec.image,
        "casulo.pool_hit": "adopt" in event.stages,
        "casulo.request.id": str(get_contextvars().get("request_id", "")),
    }


def _context_of(traceparent: str) -> Context | None:
    if not traceparent:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _nanoseconds(seconds: float) -> int:
    return timedelta(seconds=seconds) // timedelta(microseconds=1) * 1000
