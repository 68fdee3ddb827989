# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The credential vault with the official SDK: types of auth, and revisions as its own suite counts them."""

from __future__ import annotations

from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import (
    Credential,
    CredentialAuth,
    CredentialBinding,
    CredentialBindingMutationSet,
    CredentialMatch,
    CredentialMutationSet,
    CredentialProxyConfig,
    CustomHeaderEntry,
    InlineCredentialSource,
    NetworkPolicy,
    NetworkRule,
)

from scenarios.context import Context

HOST = "credential-vault-e2e.opensandbox.test"
VALUES = {
    "token": "bearer-s3cr3t",
    "pair": "dXNlcjpwYXNz",
    "key": "key-s3cr3t",
    "id": "id-s3cr3t",
    "secret": "s-s3cr3t",
}


def _credential(name: str, value: str = "") -> Credential:
    return Credential(name=name, source=InlineCredentialSource(value=value or VALUES[name]))


def _binding(name: str, auth: CredentialAuth) -> CredentialBinding:
    match = CredentialMatch(hosts=[HOST], schemes=["http"], ports=[80], methods=["GET"], paths=[f"/{name}"])
    return CredentialBinding(name=name, match=match, auth=auth)


BINDINGS = [
    _binding("bearer", CredentialAuth(type="bearer", credential="token")),
    _binding("basic", CredentialAuth(type="basic", credential="pair")),
    _binding("api-key", CredentialAuth(type="apiKey", name="X-Api-Key", credential="key")),
    _binding(
        "custom",
        CredentialAuth(
            type="customHeaders",
            headers=[
                CustomHeaderEntry(name="X-Client-Id", credential="id"),
                CustomHeaderEntry(name="X-Client-Secret", credential="secret"),
            ],
        ),
    ),
]


def _policy() -> NetworkPolicy:
    return NetworkPolicy(default_action="allow", egress=[NetworkRule(action="allow", target=HOST)])


def _hides(state: object) -> None:
    assert not any(value in repr(state) for value in VALUES.values())


async def every_type_and_its_revisions(context: Context) -> None:
    proxy = CredentialProxyConfig(enabled=True)
    async with context.sandbox(network_policy=_policy(), credential_proxy=proxy) as sandbox:
        vault = sandbox.credential_vault
        assert (await vault.create(credentials=[], bindings=[])).revision == 1
        added = await vault.patch(
            expected_revision=1,
            credentials=CredentialMutationSet(add=[_credential(name) for name in VALUES]),
            bindings=CredentialBindingMutationSet(add=[*BINDINGS]),
        )
        assert added.revision == 2 and [each.name for each in added.credentials] == sorted(VALUES)
        _hides(added)
        state = await vault.patch(bindings=CredentialBindingMutationSet(delete=["custom"]))
        assert state.revision == 3
        state = await vault.patch(
            credentials=CredentialMutationSet(replace=[_credential("token", "another-s3cr3t")]),
            bindings=CredentialBindingMutationSet(add=[BINDINGS[3]]),
        )
        assert state.revision == 4
        assert {each.name: each.revision for each in state.credentials}["token"] == 4
        assert (await vault.patch(bindings=CredentialBindingMutationSet(delete=["bearer"]))).revision == 5
        assert (await vault.patch(credentials=CredentialMutationSet(delete=["token"]))).revision == 6
        assert (await vault.get_credential("pair")).source_type == "inline"
        found = await vault.get_binding("api-key")
        assert found.auth is not None and (found.auth.type, found.auth.name) == ("apiKey", "X-Api-Key")
        assert found.match is not None and found.match.hosts == [HOST]
        assert len(await vault.list_credentials()) == 4 and len(await vault.list_bindings()) == 3
        _hides(await vault.get())
        await vault.delete()
        await _refused(vault.get(), 404)


async def _refused(call: object, status: int) -> None:
    try:
        await call  # type: ignore[misc]
    except SandboxApiException as error:
        assert error.status_code == status, error
        _hides(error)
    else:
        raise AssertionError("it was accepted")


async def mistakes_are_told(context: Context) -> None:
    proxy = CredentialProxyConfig(enabled=True)
    async with context.sandbox(network_policy=_policy(), credential_proxy=proxy) as sandbox:
        vault = sandbox.credential_vault
        await vault.create(credentials=[_credential("token")], bindings=[BINDINGS[0]])
        await _refused(vault.create(credentials=[], bindings=[]), 409)
        await _refused(vault.patch(expected_revision=9), 409)
        await _refused(vault.patch(credentials=CredentialMutationSet(delete=["token"])), 400)
        await _refused(vault.get_binding("none"), 404)
    async with context.sandbox() as sandbox:
        await _refused(sandbox.credential_vault.create(credentials=[], bindings=[]), 412)
