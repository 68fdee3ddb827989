# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where log lines go: one stream on stderr, for people or as JSON, from our code and from libraries."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

from casulo.settings import LogSettings

_QUIET = ("uvicorn", "websockets", "alembic", "asyncio", "httpx")
_UNFINISHED = "ASGI callable returned without completing response."


def configure(settings: LogSettings) -> None:
    """Set up logging for the whole process."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.format == "json":
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, _renderer(settings)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=_renderer(settings), foreign_pre_chain=shared)
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.getLogger("uvicorn.error").addFilter(_known)


def _renderer(settings: LogSettings) -> Processor:
    """Tracebacks without the values of variables, since those may be secrets."""
    if settings.format == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )


def _known(record: logging.LogRecord) -> bool:
    """The proxy leaves an answer unfinished on purpose when a sandbox does, and says so itself."""
    return record.getMessage() != _UNFINISHED
