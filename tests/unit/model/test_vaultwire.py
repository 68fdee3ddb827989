# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is refused when a credential vault is written down, each rule of it."""

from __future__ import annotations

from typing import Any

import pytest

from casulo.model import vaultkept
from casulo.model.errors import InvalidRequest
from casulo.model.vaultwire import auth_wire, parse_create, state
from unit.model.vaults import VALUE, binding, credential, made, refused, substituting


def test_defaults_are_filled_in() -> None:
    match = made(binding()).bindings["b"].match
    assert (match.schemes, match.ports, match.paths) == (("https",), (443,), ("/*",))
    assert match.methods == ("GET", "POST", "PUT", "PATCH", "DELETE")


def test_every_type_of_auth_keeps_what_it_says() -> None:
    kinds = [
        {"type": "bearer", "credential": "key"},
        {"type": "basic", "credential": "key"},
        {"type": "apiKey", "name": "X-Api-Key", "credential": "key"},
        {"type": "customHeaders", "headers": [{"name": "X-Id", "credential": "key"}]},
        {"type": "passthrough"},
        {**substituting(places=("path", "query", "header", "body"))},
    ]
    for auth in kinds:
        told = auth_wire(made(binding(auth=auth)).bindings["b"].auth)
        assert {key: told[key] for key in auth} == auth


@pytest.mark.parametrize(
    "source",
    [
        {"value": VALUE},
        {"type": "inline", "value": VALUE},
        {"type": "env", "name": "TOKEN"},
        {"type": "file", "path": "/run/secrets/token"},
        {"type": "exec", "command": ["token", "--app"]},
    ],
)
def test_sources(source: dict[str, Any]) -> None:
    vault = made(credentials=[{"name": "key", "source": source}])
    assert state(vault)["credentials"][0]["sourceType"] == source.get("type", "inline")
    assert vaultkept.load(vaultkept.dump(vault)) == vault


@pytest.mark.parametrize(
    "source",
    [
        {"value": ""},
        {"value": None},
        {"value": 1},
        {"value": "a\0b"},
        {"value": "\ud800"},
        {"type": "vault", "value": VALUE},
        {"type": 1, "value": VALUE},
        {"value": VALUE, "note": "x"},
        {"type": "env", "value": VALUE},
        {"type": "env", "name": ""},
        {"type": "file", "path": ["/x"]},
        {"type": "exec", "command": "id"},
        {"type": "exec", "command": []},
        {"type": "exec", "command": [1]},
        {"value": "x" * ((64 << 10) + 1)},
    ],
)
def test_sources_that_are_none(source: dict[str, Any]) -> None:
    refused(credentials=[{"name": "key", "source": source}])


@pytest.mark.parametrize("source", [None, "text", [], {"type": "inline"}])
def test_a_source_is_an_object_with_a_value(source: Any) -> None:
    refused(credentials=[{"name": "key", "source": source}])


@pytest.mark.parametrize("name", ["", "  ", None, 5, "a\nb", "x" * 254])
def test_names(name: Any) -> None:
    refused(credentials=[{**credential(), "name": name}])
    refused({**binding(), "name": name})


@pytest.mark.parametrize(
    "body",
    [None, [], "x", {"credentials": {}}, {"credentials": [1]}, {"bindings": "x"}, {"extra": 1}],
)
def test_bodies_that_are_none(body: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_create(body)


@pytest.mark.parametrize("place", ["", "match", "auth"])
def test_unknown_members_are_refused_everywhere(place: str) -> None:
    wrong = binding()
    (wrong[place] if place else wrong)["extra"] = VALUE
    refused(wrong)
    refused(binding(auth=substituting(extra=1)))
    refused(credentials=[{**credential(), "extra": 1}])
    headers = [{"name": "X-Id", "credential": "key", "extra": 1}]
    refused(binding(auth={"type": "customHeaders", "headers": headers}))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("API.Example.com.", "api.example.com"),
        ("*.Example.com", "*.example.com"),
        ("bücher.example.com", "xn--bcher-kva.example.com"),
        ("*.bücher.example", "*.xn--bcher-kva.example"),
        (" api.example.com ", "api.example.com"),
    ],
)
def test_hosts_are_brought_to_one_form(given: str, kept: str) -> None:
    assert made(binding("b", given)).bindings["b"].match.hosts == (kept,)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "*",
        "*.com",
        "a.*.com",
        "*api.example.com",
        "192.0.2.1",
        "::1",
        "[::1]",
        "0x7f.1",
        "1.2.3.256",
        "",
        " ",
        None,
        1,
        "preset:pypi",
        "api.example.com:443",
        "https://api.example.com",
        "api..example.com",
        "-a.example.com",
        "a/b.example.com",
        "a b.example.com",
        "10.0.0.0/8",
        "x" * 64 + ".example.com",
    ],
)
def test_hosts_that_are_none(host: Any) -> None:
    wrong = binding()
    wrong["match"]["hosts"] = [host]
    refused(wrong)


@pytest.mark.parametrize(
    ("match", "ports"),
    [
        ({}, (443,)),
        ({"schemes": ["http"]}, (80,)),
        ({"schemes": ["http", "https"]}, (80, 443)),
        ({"ports": [443]}, (443,)),
        ({"schemes": ["http"], "ports": [80]}, (80,)),
        ({"schemes": ["http", "https"], "ports": [443]}, (443,)),
    ],
)
def test_the_port_follows_the_scheme(match: dict[str, Any], ports: tuple[int, ...]) -> None:
    assert made(binding(**match)).bindings["b"].match.ports == ports


@pytest.mark.parametrize(
    "match",
    [
        {"ports": [8443]},
        {"ports": ["443"]},
        {"ports": [True]},
        {"ports": [80]},
        {"schemes": ["http"], "ports": [443]},
        {"ports": 443},
        {"schemes": ["ftp"]},
        {"schemes": ["HTTPS"]},
        {"schemes": "https"},
        {"methods": ["GE T"]},
        {"methods": [""]},
        {"methods": [1]},
        {"methods": "GET"},
        {"paths": ["x"]},
        {"paths": ["/a*b"]},
        {"paths": ["/a/../b"]},
        {"paths": ["/./a"]},
        {"paths": ["/a//b"]},
        {"paths": ["/a?x"]},
        {"paths": ["/a#x"]},
        {"paths": ["/a\\b"]},
        {"paths": ["/%2e"]},
        {"paths": ["/%2e%2E/a"]},
        {"paths": ["/%5c"]},
        {"paths": ["/%zz"]},
        {"paths": ["/%0a"]},
        {"paths": ["/a b"]},
        {"paths": ["/ü"]},
        {"paths": ["/a\n"]},
        {"paths": [None]},
        {"paths": "/*"},
    ],
)
def test_matches_that_are_none(match: dict[str, Any]) -> None:
    refused(binding(**match))


def test_a_path_may_be_escaped() -> None:
    assert made(binding(paths=["/projects/a%2Fb/*"])).bindings["b"].match.paths == ("/projects/a%2Fb/*",)


def test_methods_are_compared_in_capitals() -> None:
    assert made(binding(methods=["get", "GET"])).bindings["b"].match.methods == ("GET",)


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "Content-Length",
        "content-type",
        "Transfer-Encoding",
        "Connection",
        "Upgrade",
        "TE",
        "Trailer",
        "Proxy-Authorization",
        "proxy-x",
        "Range",
        "X_Forwarded_For",
        "Forwarded",
        "X-Forwarded-For",
        "x-forwarded-anything",
        "",
        " ",
        "X Y",
        "X:Y",
        "Ü",
        "X\n",
        None,
        3,
    ],
)
def test_headers_that_cannot_be_set(name: Any) -> None:
    refused(binding(auth={"type": "apiKey", "name": name, "credential": "key"}))
    refused(binding(auth={"type": "customHeaders", "headers": [{"name": name, "credential": "key"}]}))


@pytest.mark.parametrize(
    "auth",
    [
        None,
        {},
        {"type": "oauth"},
        {"type": ["bearer"]},
        {"type": "bearer"},
        {"type": "bearer", "credential": ""},
        {"type": "bearer", "credential": 1},
        {"type": "bearer", "credential": "key", "name": "X"},
        {"type": "basic"},
        {"type": "apiKey", "credential": "key"},
        {"type": "customHeaders"},
        {"type": "customHeaders", "headers": []},
        {"type": "passthrough", "credential": "key"},
        {
            "type": "customHeaders",
            "headers": [{"name": "X-A", "credential": "key"}, {"name": "x-a", "credential": "key"}],
        },
        {"type": "bearer", "credential": "key", "headers": [{"name": "X-A", "credential": "key"}]},
        substituting(""),
        substituting("abc"),
        substituting(None),
        substituting("a\nbcd"),
        substituting(places=()),
        substituting(places=("cookie",)),
        {"type": "passthrough", "substitutions": {}},
        substituting(places=("Header",)),
    ],
)
def test_auth_that_is_none(auth: Any) -> None:
    wrong = binding()
    wrong["auth"] = auth
    refused(wrong)


def test_placeholders_of_one_place_are_told_apart() -> None:
    auth = substituting()
    auth["substitutions"].append({"credential": "key", "placeholder": "__KEY__2", "in": ["header", "body"]})
    assert "alike" in refused(binding(auth=auth))
    auth["substitutions"][1]["in"] = ["body"]
    assert made(binding(auth=auth))


@pytest.mark.parametrize("value", ["a\rb", "a\nb", "a\x7fb", " a", "a\t", "a\x01"])
def test_values_that_do_not_fit_a_header(value: str) -> None:
    given = [credential(value=value)]
    assert "header" in refused(binding(), credentials=given)
    refused(binding(auth=substituting(places=("header",))), credentials=given)
    assert made(binding(auth=substituting(places=("body",))), credentials=given)
