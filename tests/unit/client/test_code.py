# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Code in the client without a daemon: requests, values, streams that break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casulo.cli.cells import Gallery
from casulo.client import CodeContext, CodeError, CodeResult, InvalidRequest, StreamBroken, Value
from casulo.client.channel import Channel
from casulo.client.code import AsyncCode, request_body
from casulo.client.code_results import CHART, is_binary
from casulo.client.records import Endpoint
from casulo.client.transport import Transport

from .wires import scripted

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
FILE = {"path": "/a", "size": 1, "mime": "x/y", "change": "created"}
OPTIONS: dict[str, Any] = {"language": None, "context": None, "timeout": None, "figures": ()}


def events(*items: dict[str, Any]) -> bytes:
    return HEAD + b"".join(json.dumps({"timestamp": 1, **item}).encode() + b"\n\n" for item in items)


async def run(answer: bytes) -> CodeResult:
    async with scripted([answer, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]) as (url, _):
        transport = Transport(timeout=5)

        async def locate() -> Endpoint:
            return Endpoint(url.removeprefix("http://"), {})

        try:
            return await AsyncCode(Channel(transport, locate, {})).run("code")
        finally:
            await transport.close()


def test_request_names_what_was_given() -> None:
    assert request_body("1", **OPTIONS) == {"code": "1", "context": {"language": "python"}}
    context = CodeContext("c1", "bash")
    body = request_body("1", **{**OPTIONS, "context": context})
    assert body["context"] == {"id": "c1", "language": "bash"}
    assert request_body("1", **{**OPTIONS, "context": "c1"})["context"] == {"id": "c1"}
    full = request_body("1", language="go", context=None, timeout=0.5, figures=["svg"])
    assert full["timeout"] == 500 and full["figure_formats"] == ["svg"]


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"context": CodeContext("c", "go"), "language": "python"}]
)
def test_wrong_requests_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        request_body("1", **{**OPTIONS, **options})


async def test_events_become_a_result() -> None:
    result = await run(
        events(
            {"type": "init", "text": "ctx", "fresh": True},
            {"type": "stdout", "text": "a\n", "offset": 0},
            {"type": "stderr", "base64": "/w==", "offset": 2},
            {"type": "ping", "text": "pong"},
            {"type": "result", "results": {"text/html": "<b>", "text": "d"}, "display": True},
            {"type": "execution_count", "execution_count": 3},
            {"type": "result", "results": {"text": "42"}},
            {
                "type": "casulo.files",
                "files": [{"path": "/a", "size": 1, "mime": "x/y", "change": "created"}],
            },
            {"type": "something_new"},
            {"type": "execution_complete", "execution_time": 7},
        )
    )
    assert (result.context_id, result.fresh, result.ok) == ("ctx", True, True)
    assert (result.stdout, result.stderr_bytes, result.text) == ("a\n", b"\xff", "42")
    assert (result.execution_count, result.duration_ms) == (3, 7)
    assert [value.html for value in result.displays] == ["<b>"]
    assert [(file.path, file.change) for file in result.files] == [("/a", "created")]


async def test_errors_keep_their_reason() -> None:
    error = {"ename": "ContextDiedError", "evalue": "gone", "traceback": ["one"]}
    result = await run(
        events({"type": "init", "text": "c"}, {"type": "error", "error": error, "reason": "oom"})
    )
    assert result.error == CodeError("ContextDiedError", "gone", ("one",), "oom")
    assert result.error is not None and result.error.context_died and str(result.error).endswith(": gone")


@pytest.mark.parametrize("sent", [[], [{"type": "init", "text": "c"}, {"type": "stdout", "text": "half"}]])
async def test_stream_without_an_end_is_no_success(sent: list[dict[str, Any]]) -> None:
    with pytest.raises(StreamBroken):
        await run(events(*sent))


def test_values_give_bytes_of_files() -> None:
    value = Value({"text/plain": "t", "image/png": "iVBO", "image/svg+xml": "<svg/>", CHART: {"version": 1}})
    assert value.png == b"\x89PN" and value.svg == "<svg/>" and value.chart == {"version": 1}
    assert value.data("image/svg+xml") == b"<svg/>" and value.data(CHART) == b'{"version": 1}'
    assert value.data("text/html") is None and value.html is None
    assert is_binary("application/pdf") and not is_binary("image/svg+xml")


def test_pictures_are_saved_under_numbers(tmp_path: Path) -> None:
    gallery = Gallery(tmp_path / "out")
    assert gallery.save(Value({"text/plain": "only text"})) == []
    saved = gallery.save(Value({"image/png": "iVBO", CHART: {}}))
    assert [path.name for path in saved] == ["result-1.png", "result-1.chart.json"]
    assert gallery.save(Value({"text/html": "x"}))[0].read_text() == "x"
    assert Gallery(None).save(Value({"image/png": "iVBO"})) == []
