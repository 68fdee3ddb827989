# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Running code in contexts that keep what earlier cells left behind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from casulo.client.channel import Channel
from casulo.client.code_results import ChangedFile, CodeError, CodeResult, Value
from casulo.client.faults import BAD_ANSWER, Disconnected, StreamBroken
from casulo.client.records import parse
from casulo.client.results import Capture, Handler
from casulo.client.stream import FRAMING_HEADER, RAW, Frames, Output, payload
from casulo.client.transport import Incoming
from casulo.model.errors import CasuloError, Code, InvalidRequest, RuntimeFailure

DEFAULT_LANGUAGE = "python"
INTERRUPT_SECONDS = 5.0

ValueHandler = Callable[[Value], object]
"""Gets each value as it is shown; may return an awaitable, which is awaited before the next one."""


@dataclass(frozen=True)
class CodeContext:
    """A context of one language. `busy` tells whether a cell runs in it."""

    id: str
    language: str
    busy: bool = False

    @staticmethod
    def read(data: Any) -> CodeContext:
        """From the wire."""
        return CodeContext(str(data["id"]), str(data["language"]), bool(data.get("busy")))


@dataclass(frozen=True)
class CellStarted:
    """The cell runs in this context."""

    context_id: str
    fresh: bool = False


@dataclass(frozen=True)
class CellEnded:
    """The last item of a stream."""

    error: CodeError | None = None
    duration_ms: int = 0
    execution_count: int | None = None


@dataclass(frozen=True)
class FilesChanged:
    """Files that the cell left; `truncated` tells that there may be more."""

    files: tuple[ChangedFile, ...]
    truncated: bool = False


CellEvent = CellStarted | Output | Value | FilesChanged | CellEnded


class AsyncCode:
    """The code interpreter of one sandbox: python, javascript, typescript, java, go and bash."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def run(
        self,
        code: str,
        *,
        language: str | None = None,
        context: CodeContext | str | None = None,
        timeout: float | None = None,
        figures: Sequence[str] = (),
        on_stdout: Handler | None = None,
        on_stderr: Handler | None = None,
        on_result: ValueHandler | None = None,
        capture: bool = True,
    ) -> CodeResult:
        """Run a cell to its end. Without `context` the default one of the language is used.

        `timeout` seconds after its start the cell is interrupted. `figures` are formats for plots: "png" and
        "svg". Handlers get output and values as they arrive; without `capture` nothing else keeps them.
        When the caller gives up (cancellation, or a handler that raises), the cell is interrupted.
        """
        capturing = Capture(on_stdout, on_stderr, keep=capture)
        values: list[Value] = []
        result = CodeResult("")
        stream = self.stream(code, language=language, context=context, timeout=timeout, figures=figures)
        async with aclosing(stream) as events:
            async for item in events:
                if isinstance(item, Output):
                    await capturing.take(item)
                elif isinstance(item, Value):
                    values += [item] if capture else []
                    await _hand_over(on_result, item)
                else:
                    result = _noted(result, item)
        stdout, stderr = await capturing.collected()
        return replace(result, values=tuple(values), stdout_bytes=stdout, stderr_bytes=stderr)

    async def stream(
        self,
        code: str,
        *,
        language: str | None = None,
        context: CodeContext | str | None = None,
        timeout: float | None = None,
        figures: Sequence[str] = (),
    ) -> AsyncGenerator[CellEvent, None]:
        """CellStarted, then output, values and files as they come, and a CellEnded as the last item, always.

        Leaving early interrupts the cell.
        """
        body = request_body(code, language=language, context=context, timeout=timeout, figures=figures)
        assembly = _Assembly()
        given_up = True
        try:
            async with aclosing(self._events(body)) as events:
                async for event in events:
                    if (item := assembly.accept(event)) is not None:
                        yield item
            given_up = False
        except CasuloError:
            given_up = False
            raise
        finally:
            if given_up and assembly.context_id and assembly.ended is None:
                await self._abandon(assembly.context_id)
        if assembly.ended is None:
            raise _broken(assembly.context_id)
        yield assembly.ended

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        frames = Frames()
        with contextlib.suppress(Disconnected):
            async with self._channel.stream(
                "POST", "/code", content=body, headers={FRAMING_HEADER: RAW}
            ) as incoming:
                _expect_events(incoming)
                async for chunk in incoming.chunks:
                    for event in frames.feed(chunk):
                        yield event
        for event in frames.end():
            yield event

    async def _abandon(self, context_id: str) -> None:
        """Best effort: the caller is already leaving, with an error of its own or cancelled."""
        with contextlib.suppress(CasuloError, TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.interrupt(context_id)), INTERRUPT_SECONDS)

    async def interrupt(self, context: CodeContext | str) -> None:
        """Stop the cell that runs in a context; its state stays where the language can keep it."""
        await self._channel.request("DELETE", "/code", query=[("id", _id(context))])

    async def create_context(
        self, language: str = DEFAULT_LANGUAGE, *, cwd: str | None = None
    ) -> CodeContext:
        """A new context with a process of its own, which begins in `cwd`."""
        body = {"language": language, **({"cwd": cwd} if cwd else {})}
        answer = await self._channel.request("POST", "/code/context", content=body)
        return parse(CodeContext.read, answer.json())

    async def contexts(self, language: str | None = None) -> list[CodeContext]:
        """All contexts, or those of one language; the default ones are among them once they were used."""
        query = [("language", language)] if language else []
        answer = await self._channel.request("GET", "/code/contexts", query=query)
        return parse(lambda data: [CodeContext.read(item) for item in data], answer.json())

    async def context(self, context_id: str) -> CodeContext:
        """One context; NotFound when there is no such."""
        answer = await self._channel.request("GET", f"/code/contexts/{context_id}")
        return parse(CodeContext.read, answer.json())

    async def delete_context(self, context: CodeContext | str) -> None:
        """End a context with everything that its cells started."""
        await self._channel.request("DELETE", f"/code/contexts/{_id(context)}")

    async def delete_contexts(self, language: str) -> None:
        """End all contexts of a language, the default one included."""
        await self._channel.request("DELETE", "/code/contexts", query=[("language", language)])


class _Assembly:
    """What the events of one cell mean."""

    def __init__(self) -> None:
        self.context_id = ""
        self.count: int | None = None
        self.ended: CellEnded | None = None

    def accept(self, event: dict[str, Any]) -> CellEvent | None:
        kind = event.get("type")
        if kind == "stdout" or kind == "stderr":
            return Output(kind, payload(event))
        if kind == "result":
            return Value.read(event)
        if kind == "init":
            self.context_id = str(event.get("text") or "")
            return CellStarted(self.context_id, bool(event.get("fresh")))
        if kind == "casulo.files":
            files = tuple(_changed(item) for item in event.get("files") or ())
            return FilesChanged(files, bool(event.get("truncated")))
        if kind == "execution_count":
            self.count = int(event.get("execution_count") or 0)
        elif kind == "error":
            self.ended = CellEnded(CodeError.read(event), execution_count=self.count)
        elif kind == "execution_complete":
            self.ended = CellEnded(None, int(event.get("execution_time") or 0), self.count)
        return None


def request_body(
    code: str,
    *,
    language: str | None,
    context: CodeContext | str | None,
    timeout: float | None,
    figures: Sequence[str],
) -> dict[str, Any]:
    """The body of POST /code; what was not given is left out."""
    if timeout is not None and timeout <= 0:
        raise InvalidRequest(f"timeout: {timeout!r} is not above zero", code=Code.INVALID_PARAMETER)
    known = context.language if isinstance(context, CodeContext) else None
    if language and known and language != known:
        raise InvalidRequest(f"the context is one of {known}, not of {language}", code=Code.INVALID_PARAMETER)
    chosen = language or known or (None if context else DEFAULT_LANGUAGE)
    where = {"id": _id(context) if context else None, "language": chosen}
    fields = {
        "code": code,
        "context": {name: value for name, value in where.items() if value},
        "timeout": None if timeout is None else max(1, round(timeout * 1000)),
        "figure_formats": list(figures) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _noted(result: CodeResult, item: CellStarted | FilesChanged | CellEnded) -> CodeResult:
    if isinstance(item, CellStarted):
        return replace(result, context_id=item.context_id, fresh=item.fresh)
    if isinstance(item, FilesChanged):
        return replace(result, files=item.files, files_truncated=item.truncated)
    return replace(
        result, error=item.error, duration_ms=item.duration_ms, execution_count=item.execution_count
    )


async def _hand_over(handler: ValueHandler | None, value: Value) -> None:
    answer = handler(value) if handler else None
    if inspect.isawaitable(answer):
        await answer


def _changed(data: Any) -> ChangedFile:
    return ChangedFile(str(data["path"]), int(data["size"]), str(data["mime"]), str(data["change"]))


def _id(context: CodeContext | str) -> str:
    return context.id if isinstance(context, CodeContext) else context


def _expect_events(incoming: Incoming) -> None:
    kind = incoming.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise RuntimeFailure(f"expected a stream of events, got {kind or 'nothing'}", code=BAD_ANSWER)


def _broken(context_id: str) -> StreamBroken:
    return StreamBroken(
        "the connection broke while the cell ran; how it ended is not known",
        command_id=context_id,
        offset=0,
        hint="the cell goes on in its context; run another one there, or interrupt it",
    )
