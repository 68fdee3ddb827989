# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The rules of a credential vault as a whole: revisions, order, ambiguity, what the policy must allow."""

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
from casulo.model.vaultwire import parse_create, parse_patch, state
from unit.model.vaults import VALUE, binding, credential, made, refused, substituting


def test_both_lists_may_be_empty_or_missing() -> None:
    assert (
        created(*parse_create({})).revision
        == created(*parse_create({"credentials": [], "bindings": []})).revision
        == 1
    )


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


@pytest.mark.parametrize("hosts", [None, [], "api.example.com", [f"h{n}.example.com" for n in range(65)]])
def test_hosts_are_required_and_bounded(hosts: Any) -> None:
    wrong = binding()
    wrong["match"]["hosts"] = hosts
    refused(wrong)


@pytest.mark.parametrize(
    ("one", "other", "ambiguous"),
    [
        ({}, {}, True),
        ({"paths": ["/a/*"]}, {"paths": ["/b/*"]}, False),
        ({"paths": ["/a/*"]}, {"paths": ["/a/b"]}, True),
        ({"paths": ["/a*"]}, {"paths": ["/a/b/*"]}, True),
        ({"paths": ["/a"]}, {"paths": ["/a"]}, True),
        ({"paths": ["/a"]}, {"paths": ["/ab"]}, False),
        ({"paths": ["/v1/*"]}, {"paths": ["/%76%31/x"]}, True),
        ({"paths": ["/a%2fb"]}, {"paths": ["/a%2Fb"]}, True),
        ({"paths": ["/a%2Fb"]}, {"paths": ["/a/b"]}, False),
        ({"paths": ["/a%2Fb"]}, {"paths": ["/a%252Fb"]}, False),
        ({"paths": ["/a%2A"]}, {"paths": ["/a*"]}, True),
        ({"paths": ["/a%2A"]}, {"paths": ["/ab"]}, False),
        ({"paths": ["/a<b"]}, {"paths": ["/a%3Cb"]}, True),
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
