# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Forwarding of one WebSocket: messages as they are, subprotocol, Origin, close code and reason.

A failure is told as a close code after the handshake, since browsers hide the status of a refused one:
1008 when the request was refused, 1011 when the sandbox could not be reached.
"""

from __future__ import annotations

import asyncio

import structlog
from starlette.types import Message, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    NegotiationError,
)
from websockets.typing import Origin, Subprotocol

from casulo.api.proxy import headers as rules
from casulo.api.proxy.route import Route

REFUSED = 1008
UNREACHABLE = 1011
_NO_STATUS = 1005
_ABNORMAL = 1006
_LONGEST_REASON = 123

_HANDSHAKE = frozenset(
    {
        b"origin",
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
        b"content-length",
    }
)

_log = structlog.get_logger(__name__)


async def relay(scope: Scope, receive: Receive, send: Send, route: Route, limit: float) -> None:
    """Connect to the sandbox, accept the caller, pass messages both ways until either side closes."""
    await receive()  # the connect event: nothing in it
    try:
        upstream = await _connect(scope, route, limit)
    except InvalidStatus as error:
        status = error.response.status_code
        gone = status in (502, 503, 504)  # the sandbox's own proxy found nobody on that port
        await refuse(
            send, UNREACHABLE if gone else REFUSED, f"the sandbox answered the handshake with {status}"
        )
    except (InvalidURI, NegotiationError, ValueError) as error:
        await refuse(send, REFUSED, f"the handshake cannot be forwarded: {error}")
    except (OSError, TimeoutError, InvalidHandshake) as error:
        await refuse(send, UNREACHABLE, f"the sandbox cannot be reached: {error}")
    else:
        await send({"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": []})
        await _pump(receive, send, upstream)


async def refuse(send: Send, code: int, reason: str) -> None:
    """Complete the handshake only to say, in a form that every client can read, why it ends."""
    await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    await send({"type": "websocket.close", "code": code, "reason": _shortened(reason)})


async def _connect(scope: Scope, route: Route, limit: float) -> ClientConnection:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in rules.for_sandbox(scope, route, without=_HANDSHAKE)
    ]
    origin = rules.value_of(scope["headers"], b"origin")
    return await connect(
        f"ws://{route.host.decode()}{route.path.decode('latin-1')}",
        host=route.peer.host,
        port=route.peer.port,
        origin=Origin(origin.decode("latin-1")) if origin is not None else None,
        subprotocols=[Subprotocol(name) for name in scope.get("subprotocols", [])] or None,
        additional_headers=headers,
        user_agent_header=None,
        compression=None,
        proxy=None,
        open_timeout=limit,
        ping_interval=None,
        # The program's close is known to the caller only once the connection has ended, and some
        # programs leave that to the other side.
        close_timeout=0.5,
        max_size=None,
    )


async def _pump(receive: Receive, send: Send, upstream: ClientConnection) -> None:
    """Both directions until one side closes; the other side is then told."""
    inward = asyncio.create_task(_to_sandbox(receive, upstream))
    outward = asyncio.create_task(_to_caller(upstream, send))
    try:
        await asyncio.wait([inward, outward], return_when=asyncio.FIRST_COMPLETED)
        caller_left = inward.done() and inward.result()
        if not caller_left:
            await outward
    finally:
        inward.cancel()
        outward.cancel()
        await asyncio.wait([inward, outward])
        upstream.transport.abort()


async def _to_sandbox(receive: Receive, upstream: ClientConnection) -> bool:
    """True when the caller closed, False when the sandbox did."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            await _close(upstream, message)
            return True
        text = message.get("text")
        try:
            await upstream.send(text if text is not None else message["bytes"])
        except ConnectionClosed:
            return False


async def _close(upstream: ClientConnection, message: Message) -> None:
    code = message.get("code")
    if code == _ABNORMAL:
        return  # no close frame came, so none is sent
    without_status = code in (None, _NO_STATUS)
    await upstream.close(
        None if without_status else code,  # type: ignore[arg-type]  # None sends a frame without a code
        "" if without_status else message.get("reason") or "",
    )


async def _to_caller(upstream: ClientConnection, send: Send) -> None:
    try:
        while True:
            data = await upstream.recv()
            key = "text" if isinstance(data, str) else "bytes"
            await send({"type": "websocket.send", key: data})
    except ConnectionClosed:
        await _tell(send, _closing(upstream))
    except OSError:
        _log.debug("proxy.websocket.caller_gone")


async def _tell(send: Send, closing: Message) -> None:
    try:
        await send(closing)
    except OSError:
        _log.debug("proxy.websocket.caller_gone")


def _closing(upstream: ClientConnection) -> Message:
    """The close that the caller gets for the one that the sandbox sent, or did not send."""
    code, reason = upstream.close_code, upstream.close_reason or ""
    if code == _ABNORMAL or code is None:
        return {"type": "websocket.close", "code": UNREACHABLE, "reason": "the sandbox broke off"}
    return {"type": "websocket.close", "code": None if code == _NO_STATUS else code, "reason": reason}


def _shortened(reason: str) -> str:
    """As much of `reason` as a close frame holds, never half a character."""
    return reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
