# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Who is told which form of an endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from casulo.api.endpoints import endpoint_for, is_local
from casulo.model.sandbox import Handle

HANDLE = Handle("10.1.2.3", 44772, "secret")


def _scope(client: str, server: str = "192.0.2.5", **headers: str) -> dict[str, Any]:
    return {
        "client": (client, 5000),
        "server": (server, 8080),
        "path": "/v1/sandboxes/x/endpoints/80",
        "root_path": "",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }


@pytest.mark.parametrize(
    ("scope", "local"),
    [
        (_scope("127.0.0.1"), True),
        (_scope("::1"), True),
        (_scope("192.0.2.5"), True),
        (_scope("192.0.2.6"), False),
        (_scope("127.0.0.1", x_forwarded_for="192.0.2.6"), False),
        (_scope("127.0.0.1", forwarded="for=192.0.2.6"), False),
        (_scope("not an address"), False),
        ({**_scope("127.0.0.1"), "client": None}, False),
    ],
)
def test_who_is_local(scope: dict[str, Any], local: bool) -> None:
    assert is_local(scope) is local


@pytest.mark.parametrize(
    ("headers", "eip", "expected"),
    [
        ({"host": "box.example"}, None, "box.example"),
        ({"host": "[2001:db8::1]:8080"}, None, "[2001:db8::1]:8080"),
        ({}, None, "192.0.2.5:8080"),
        ({"host": "box.example"}, "203.0.113.7", "203.0.113.7:8080"),
        ({"host": "box.example"}, "203.0.113.7:443", "203.0.113.7:443"),
        ({"host": "box.example"}, "2001:db8::7", "[2001:db8::7]:8080"),
        ({"host": "box.example"}, "[2001:db8::7]:443", "[2001:db8::7]:443"),
    ],
)
def test_the_address_of_the_server(headers: dict[str, str], eip: str | None, expected: str) -> None:
    scope = _scope("192.0.2.6", **headers)
    found = endpoint_for(scope, "x", 80, HANDLE, eip=eip, proxied=False)
    assert found.endpoint == f"{expected}/v1/sandboxes/x/proxy/80" and found.headers is None


def test_mount_points_are_kept() -> None:
    scope = {**_scope("192.0.2.6", host="box.example"), "path": "/mounted/sandboxes/x/endpoints/80"}
    found = endpoint_for(scope, "x", 80, HANDLE, eip=None, proxied=False)
    assert found.endpoint == "box.example/mounted/sandboxes/x/proxy/80"


def test_the_token_goes_with_the_daemon_and_with_direct_endpoints() -> None:
    token = {"X-EXECD-ACCESS-TOKEN": "secret"}
    near, far = _scope("127.0.0.1"), _scope("192.0.2.6", host="h")
    cases = [(near, 44772, False), (near, 80, False), (near, 44772, True), (far, 44772, False)]
    for scope, port, proxied in cases:
        assert endpoint_for(scope, "x", port, HANDLE, eip=None, proxied=proxied).headers == token
    for scope, proxied in ((near, True), (far, False)):
        assert endpoint_for(scope, "x", 80, HANDLE, eip=None, proxied=proxied).headers is None
