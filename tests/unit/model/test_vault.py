# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The rules of a credential vault, each of them."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from casulo.model import vaultkept
from casulo.model.errors import Code, Conflict, InvalidRequest
from casulo.model.policywire import parse_policy
from casulo.model.secret import Secret
from casulo.model.vault import Vault, created, patched
from casulo.model.vaultreach import check_policy, check_reachable
from casulo.model.vaultwire import auth_wire, parse_create, parse_patch, state

VALUE = "s3cr3t-value"


def credential(name: str = "key", **source: Any) -> dict[str, Any]:
    return {"name": name, "source": source or {"value": VALUE}}


def binding(name: str = "b", *hosts: str, auth: dict[str, Any] | None = None, **match: Any) -> dict[str, Any]:
    bearer = {"type": "bearer", "credential": "key"}
    return {
        "name": name,
        "match": {"hosts": list(hosts or ("api.example.com",)), **match},
        "auth": auth or bearer,
    }


def made(*bindings: dict[str, Any], credentials: list[dict[str, Any]] | None = None) -> Vault:
    given = [credential()] if credentials is None else credentials
    return created(*parse_create({"credentials": given, "bindings": list(bindings)}))


def refused(*bindings: Any, credentials: Any = None) -> str:
    with pytest.raises(InvalidRequest) as caught:
        made(*bindings, credentials=credentials)
    assert caught.value.code == Code.VAULT_INVALID
    assert VALUE not in str(caught.value)
    return str(caught.value)


def substituting(placeholder: Any = "__KEY__", places: Any = ("header",), **more: Any) -> dict[str, Any]:
    one = {"credential": "key", "placeholder": placeholder, "in": list(places), **more}
    return {"type": "passthrough", "substitutions": [one]}


def test_defaults_are_filled_in() -> None:
    match = made(binding()).bindings["b"].match
    assert (match.schemes, match.ports, match.paths) == (("https",), (443,), ("/*",))
    assert match.methods == ("GET", "POST", "PUT", "PATCH", "DELETE")


def test_both_lists_may_be_empty_or_missing() -> None:
    assert (
        created(*parse_create({})).revision
        == created(*parse_create({"credentials": [], "bindings": []})).revision
        == 1
    )


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


def test_state_is_sorted_and_has_no_values() -> None:
    auth = {"type": "apiKey", "name": "X-Api-Key", "credential": "key"}
    told = state(
        made(
            binding("z"),
            binding("a", "b.example.com", auth=auth),
            credentials=[credential("z"), credential()],
        )
    )
    assert [c["name"] for c in told["credentials"]] == ["key", "z"]
    assert told["credentials"][0] == {"name": "key", "sourceType": "inline", "revision": 1}
    assert [b["name"] for b in told["bindings"]] == ["a", "z"]
    assert told["bindings"][0]["auth"] == {"type": "apiKey", "name": "X-Api-Key"}
    assert told["bindings"][0]["match"]["hosts"] == ["b.example.com"]
    assert VALUE not in json.dumps(told)


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


@pytest.mark.parametrize("hosts", [None, [], "api.example.com", [f"h{n}.example.com" for n in range(65)]])
def test_hosts_are_required_and_bounded(hosts: Any) -> None:
    wrong = binding()
    wrong["match"]["hosts"] = hosts
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


@pytest.mark.parametrize(
    ("one", "other", "ambiguous"),
    [
        ({}, {}, True),
        ({"paths": ["/a/*"]}, {"paths": ["/b/*"]}, False),
        ({"paths": ["/a/*"]}, {"paths": ["/a/b"]}, True),
        ({"paths": ["/a*"]}, {"paths": ["/a/b/*"]}, True),
        ({"paths": ["/a"]}, {"paths": ["/a"]}, True),
        ({"paths": ["/a"]}, {"paths": ["/ab"]}, False),
        ({"methods": ["GET"]}, {"methods": ["POST"]}, False),
        ({"methods": ["GET"]}, {"methods": ["get", "POST"]}, True),
        ({"schemes": ["http"]}, {}, False),
        ({"schemes": ["http", "https"]}, {}, True),
    ],
)
def test_two_bindings_for_one_request_are_refused(one: Any, other: Any, ambiguous: bool) -> None:
    for hosts in ("api.example.com", "*.example.com"):
        pair = (binding("one", hosts, **one), binding("other", hosts, **other))
        if ambiguous:
            assert "both match" in refused(*pair)
        else:
            assert len(made(*pair).bindings) == 2


@pytest.mark.parametrize(
    ("one", "other", "ambiguous"),
    [
        ("api.example.com", "*.example.com", False),
        ("*.example.com", "*.eu.example.com", True),
        ("*.eu.example.com", "*.example.com", True),
        ("*.example.com", "*.example.org", False),
        ("a.example.com", "b.example.com", False),
        ("*.ample.com", "*.example.com", False),
        ("API.example.com", "api.example.com.", True),
    ],
)
def test_an_exact_host_goes_before_a_wildcard(one: str, other: str, ambiguous: bool) -> None:
    if ambiguous:
        refused(binding("one", one), binding("other", other))
    else:
        made(binding("one", one), binding("other", other))


def patch(vault: Vault, **body: Any) -> Vault:
    return patched(vault, parse_patch(body))


def test_revisions_go_up_and_say_what_changed_when() -> None:
    vault = created(*parse_create({}))
    second = patch(vault, credentials={"add": [credential()]}, bindings={"add": [binding()]})
    third = patch(second, bindings={"delete": ["b"]}, expectedRevision=2)
    fourth = patch(
        third, credentials={"replace": [credential(value="new")]}, bindings={"add": [binding("c")]}
    )
    fifth = patch(fourth, bindings={"delete": ["c"]})
    last = patch(fifth, credentials={"delete": ["key"]})
    assert [v.revision for v in (vault, second, third, fourth, fifth, last)] == [1, 2, 3, 4, 5, 6]
    assert third.credentials["key"].revision == 2
    assert fourth.credentials["key"].revision == fourth.bindings["c"].revision == 4
    assert not last.credentials


@pytest.mark.parametrize("expected", [0, 2])
def test_another_revision_is_a_conflict(expected: int) -> None:
    with pytest.raises(Conflict) as caught:
        patch(made(), expectedRevision=expected)
    assert caught.value.code == Code.VAULT_REVISION


@pytest.mark.parametrize("expected", [True, "1", 1.0, -1, [1]])
def test_revisions_are_numbers(expected: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_patch({"expectedRevision": expected})


@pytest.mark.parametrize(
    "body",
    [
        {"credentials": {"add": [credential()]}},
        {"credentials": {"add": [credential("n"), credential("n")]}},
        {"credentials": {"replace": [credential("n")]}},
        {"credentials": {"delete": ["n"]}},
        {"credentials": {"delete": ["key"]}},
        {"credentials": {"replace": [credential()], "delete": ["key"]}},
        {"credentials": {"delete": ["spare"], "add": [credential("spare")]}},
        {"credentials": {"replace": [credential("spare"), credential("spare")]}},
        {"bindings": {"add": [binding()]}},
        {"bindings": {"add": [binding("c", "c.example.com", auth={"type": "bearer", "credential": "none"})]}},
        {"bindings": {"add": [binding("c")]}},
        {"bindings": {"replace": [binding("c")]}},
        {"bindings": {"delete": ["b", "b"]}},
        {"bindings": {"delete": ["b"], "add": [binding()]}},
        {"credentials": {"replace": [credential(value="a\nb")]}},
        {"extra": 1},
        {"credentials": []},
        {"credentials": {"extra": []}},
        {"credentials": {"delete": "key"}},
        {"credentials": {"delete": [1]}},
        {"bindings": {"replace": [{"name": "b"}]}},
    ],
)
def test_patches_that_change_nothing(body: dict[str, Any]) -> None:
    vault = made(binding(), credentials=[credential(), credential("spare")])
    before = copy.copy(vault)
    with pytest.raises(InvalidRequest):
        patch(vault, **body)
    assert vault == before


def test_a_patch_deletes_before_it_replaces_and_adds() -> None:
    vault = made(binding(), credentials=[credential(), credential("old")])
    moved = patch(
        vault,
        credentials={"delete": ["old"], "add": [credential("new")]},
        bindings={"delete": ["b"], "add": [binding("same place")]},
    )
    assert set(moved.credentials) == {"key", "new"} and set(moved.bindings) == {"same place"}


def test_a_used_credential_goes_together_with_its_binding() -> None:
    assert not patch(made(binding()), credentials={"delete": ["key"]}, bindings={"delete": ["b"]}).credentials


def test_a_vault_is_bounded() -> None:
    assert "at most" in refused(credentials=[credential(f"c{n}") for n in range(257)])


def test_a_kept_vault_comes_back_whole() -> None:
    auth = substituting(places=("path", "body"))
    vault = patch(
        made({**binding("b", "*.example.com", auth=auth, paths=["/v1/*"]), "redactBodies": True}),
        credentials={"add": [credential("ünï")]},
    )
    assert vaultkept.load(vaultkept.dump(vault)) == vault


DENY_ALL: dict[str, Any] = {}
REACHED = [
    ({"defaultAction": "allow"}, "api.example.com", True),
    (DENY_ALL, "api.example.com", False),
    ({"egress": [{"action": "allow", "target": "API.example.com."}]}, "api.example.com", True),
    ({"egress": [{"action": "allow", "target": "*.example.com"}]}, "api.example.com", True),
    ({"egress": [{"action": "allow", "target": "*.example.com"}]}, "*.example.com", True),
    ({"egress": [{"action": "allow", "target": "*.example.com"}]}, "*.eu.example.com", True),
    ({"egress": [{"action": "allow", "target": "*.eu.example.com"}]}, "*.example.com", False),
    ({"egress": [{"action": "allow", "target": "*.api.example.com"}]}, "api.example.com", False),
    ({"egress": [{"action": "allow", "target": "api.example.com"}]}, "*.example.com", False),
    (
        {
            "egress": [
                {"action": "deny", "target": "api.example.com"},
                {"action": "allow", "target": "*.example.com"},
            ]
        },
        "*.example.com",
        True,
    ),
    (
        {
            "egress": [
                {"action": "deny", "target": "*.example.com"},
                {"action": "allow", "target": "api.example.com"},
            ]
        },
        "api.example.com",
        False,
    ),
    (
        {
            "egress": [
                {"action": "allow", "target": "api.example.com"},
                {"action": "deny", "target": "*.example.com"},
            ]
        },
        "api.example.com",
        True,
    ),
    (
        {"defaultAction": "allow", "egress": [{"action": "deny", "target": "api.example.com"}]},
        "api.example.com",
        False,
    ),
    (
        {
            "defaultAction": "allow",
            "egress": [{"action": "deny", "target": "api.example.com", "ports": [80]}],
        },
        "api.example.com",
        True,
    ),
    (
        {"egress": [{"action": "allow", "target": "api.example.com", "ports": ["440-450"]}]},
        "api.example.com",
        True,
    ),
    (
        {"egress": [{"action": "allow", "target": "api.example.com", "ports": [8443]}]},
        "api.example.com",
        False,
    ),
    (
        {"egress": [{"action": "allow", "target": "api.example.com", "protocols": ["udp"], "ports": [500]}]},
        "api.example.com",
        False,
    ),
    ({"egress": [{"action": "allow", "target": "192.0.2.0/24"}]}, "api.example.com", False),
    ({"egress": [{"action": "allow", "target": "preset:pypi"}]}, "pypi.org", True),
    (
        {"egress": [{"action": "allow", "target": "api.example.com", "methods": ["GET"]}]},
        "api.example.com",
        False,
    ),
]


@pytest.mark.parametrize(("policy", "host", "reached"), REACHED)
def test_bound_hosts_are_allowed_by_the_policy(policy: dict[str, Any], host: str, reached: bool) -> None:
    vault, wanted = made(binding("b", host)), parse_policy(policy)
    for check in (check_reachable, check_policy):
        if reached:
            check(vault, wanted)
        else:
            with pytest.raises(InvalidRequest) as caught:
                check(vault, wanted)
            assert caught.value.code == Code.VAULT_INVALID and host in str(caught.value)


def test_plain_requests_may_be_allowed_by_method() -> None:
    vault = made(binding(schemes=["http"]))
    rule = {"action": "allow", "target": "api.example.com", "ports": [80], "methods": ["GET"]}
    check_reachable(vault, parse_policy({"egress": [rule]}))


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret(VALUE)
    for text in (repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", repr(made()), f"{[secret]}"):
        assert VALUE not in text
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps({"value": secret})
    assert secret == Secret(VALUE) != Secret("other") and secret != VALUE
