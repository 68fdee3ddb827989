# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The life of a vault: told to whoever injects, kept sealed, and there again after everything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from casulo.control.vaultsettings import VaultSettings
from casulo.model.errors import CasuloError, Code, Conflict, Forbidden, InvalidRequest, NotFound, Unavailable
from casulo.model.keys import OPERATOR, Caller, Scope
from casulo.model.policywire import parse_policy
from casulo.model.sandbox import Sandbox
from casulo.model.snapshot import SnapshotState
from casulo.model.vaultwire import parse_create, parse_patch
from support.memory_egress import MemoryEgress
from support.memory_runtime import MemoryRuntime
from unit.control.conftest import Lab, Service, until

VALUE = "s3cr3t-value"
ALLOW = parse_policy({"egress": [{"action": "allow", "target": "api.example.com"}]})
BINDING = {
    "name": "b",
    "match": {"hosts": ["api.example.com"]},
    "auth": {"type": "bearer", "credential": "key"},
}
TENANT = Caller("key", "team", frozenset({Scope.CREATE}))


def body(**source: Any) -> dict[str, Any]:
    return {"credentials": [{"name": "key", "source": source or {"value": VALUE}}], "bindings": [BINDING]}


@pytest.fixture(autouse=True)
def _settings(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    vault = VaultSettings(env=("TOKEN",), files=(tmp_path / "secrets",)).with_environment({"TOKEN": VALUE})
    lab.settings = lab.settings.model_copy(update={"vault": vault, "data_dir": tmp_path})


async def serve(lab: Lab, egress: MemoryEgress | None = None) -> Service:
    runtime = MemoryRuntime(lab.world)
    runtime.egress = egress or MemoryEgress()
    runtime.features = frozenset({"pause", "egress", "vault"})
    return await lab.service(runtime)


@pytest.fixture
async def able(lab: Lab) -> Service:
    return await serve(lab)


def egress(service: Service) -> MemoryEgress:
    assert isinstance(service.runtime.egress, MemoryEgress)
    return service.runtime.egress


async def box(service: Service, **more: Any) -> Sandbox:
    return await service.create(**{"network_policy": ALLOW, "credential_proxy": True, **more})


async def make(service: Service, sandbox: Sandbox, caller: Caller = OPERATOR, **source: Any) -> Any:
    return await service.lifecycle.vaults.create(sandbox.id, *parse_create(body(**source)), caller)


async def change(service: Service, sandbox: Sandbox, **patch: Any) -> Any:
    return await service.lifecycle.vaults.patch(sandbox.id, parse_patch(patch), OPERATOR)


def on_disk(lab: Lab) -> bytes:
    return b"".join(path.read_bytes() for path in lab.path.parent.glob("casulo.db*") if path.is_file())


async def test_a_vault_is_told_and_kept_sealed(able: Service, lab: Lab) -> None:
    sandbox = await box(able)
    certificate = able.runtime.specs[sandbox.id].trusted_ca
    assert "BEGIN CERTIFICATE" in certificate and not egress(able).vaults
    assert (await make(able, sandbox)).revision == 1
    told = egress(able).vaults[sandbox.id]
    assert told["revision"] == 1 and told["credentials"] == {"key": VALUE} and told["upstreamRoots"] == ""
    assert told["ca"]["certificate"] == certificate and "PRIVATE KEY" in told["ca"]["key"]
    assert told["bindings"][0]["match"]["ports"] == [443] and told["bindings"][0]["redactBodies"] is False
    assert VALUE.encode() not in on_disk(lab) and b"PRIVATE KEY" not in on_disk(lab)
    stored = await able.store.get(sandbox.id)
    assert stored is not None and stored.spec.trusted_ca == ""


async def test_changes_are_told_or_nothing_is_changed(able: Service) -> None:
    sandbox = await box(able)
    await make(able, sandbox)
    new = {"replace": [{"name": "key", "source": {"value": "other"}}]}
    assert (await change(able, sandbox, credentials=new)).revision == 2
    assert egress(able).vaults[sandbox.id]["credentials"] == {"key": "other"}
    egress(able).error = Unavailable("gone")
    with pytest.raises(Unavailable):
        await change(able, sandbox, bindings={"delete": ["b"]})
    egress(able).error = None
    assert (await able.lifecycle.vaults.get(sandbox.id)).revision == 2
    with pytest.raises(Conflict):
        await change(able, sandbox, expectedRevision=1)
    await able.lifecycle.vaults.delete(sandbox.id, OPERATOR)
    assert not egress(able).vaults
    for call in (
        able.lifecycle.vaults.get(sandbox.id),
        change(able, sandbox),
        able.lifecycle.vaults.delete(sandbox.id, OPERATOR),
    ):
        with pytest.raises(NotFound):
            await call
    assert (await make(able, sandbox)).revision == 1


async def test_one_vault_is_made_of_two_at_once(able: Service) -> None:
    sandbox = await box(able)
    ends = await asyncio.gather(*(make(able, sandbox) for _ in range(5)), return_exceptions=True)
    refused = [end for end in ends if isinstance(end, Conflict)]
    assert len(refused) == 4 and {each.code for each in refused} == {Code.VAULT_EXISTS}


async def test_changes_at_once_are_made_one_after_the_other(able: Service) -> None:
    sandbox = await box(able)
    await make(able, sandbox)
    more = [{"credentials": {"add": [{"name": f"c{n}", "source": {"value": VALUE}}]}} for n in range(8)]
    done = await asyncio.gather(*(change(able, sandbox, **patch) for patch in more))
    assert sorted(vault.revision for vault in done) == list(range(2, 10))
    assert len(egress(able).vaults[sandbox.id]["credentials"]) == 9


@pytest.mark.parametrize(
    "given", [{"credential_proxy": False}, {"credential_proxy": False, "network_policy": None}]
)
async def test_a_sandbox_that_was_not_made_for_it(able: Service, given: Mapping[str, Any]) -> None:
    sandbox = await box(able, **given)
    assert able.runtime.specs[sandbox.id].trusted_ca == ""
    with pytest.raises(InvalidRequest) as caught:
        await make(able, sandbox)
    assert caught.value.code == Code.VAULT_NOT_ENABLED
    with pytest.raises(NotFound):
        await able.lifecycle.vaults.get(sandbox.id)
    assert not (able.lifecycle.vault_settings.key_file or Path("/none")).exists()


async def test_a_runtime_without_it_refuses_at_create(lab: Lab) -> None:
    service = await lab.service()
    with pytest.raises(CasuloError) as caught:
        await service.create(credential_proxy=True)
    assert caught.value.code == Code.NOT_SUPPORTED and "credentialProxy" in caught.value.message


async def test_a_policy_that_closes_a_bound_host_is_refused(able: Service) -> None:
    sandbox = await box(able)
    await make(able, sandbox)
    policies = able.lifecycle.policies
    for shut in (
        policies.replace(sandbox.id, parse_policy({})),
        policies.remove(sandbox.id, ["api.example.com"]),
        policies.merge(sandbox.id, parse_policy({"egress": [{"target": "*.example.com"}]}).egress),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await shut
        assert caught.value.code == Code.VAULT_INVALID
    assert (await policies.get(sandbox.id)).policy == ALLOW
    await policies.replace(sandbox.id, parse_policy({"defaultAction": "allow"}))
    await change(able, sandbox, bindings={"delete": ["b"]})
    await policies.replace(sandbox.id, parse_policy({}))
    with pytest.raises(InvalidRequest):
        await change(able, sandbox, bindings={"add": [BINDING]})


async def test_after_a_restart_the_runtime_knows_before_it_opens(able: Service, lab: Lab) -> None:
    sandbox = await box(able)
    await make(able, sandbox)
    told = egress(able).vaults[sandbox.id]
    await lab.crash(able)
    later = await serve(lab)
    assert later.runtime.foretold == {sandbox.id: told}
    assert (await change(later, sandbox, bindings={"delete": ["b"]})).revision == 2


async def test_a_vault_goes_with_its_sandbox(able: Service) -> None:
    sandbox = await box(able)
    await make(able, sandbox)
    await able.lifecycle.delete(sandbox.id)
    assert not await able.store.sealed.any()


async def test_nothing_stays_of_a_start_that_failed(able: Service) -> None:
    able.runtime.create_error = InvalidRequest("no")
    with pytest.raises(InvalidRequest):
        await box(able)
    assert not await able.store.sealed.any()


async def snapshot(service: Service, sandbox: Sandbox) -> str:
    taken = await service.lifecycle.snapshots.take(sandbox.id)

    async def ready() -> bool:
        return (await service.lifecycle.snapshots.get(taken.id)).status.state is SnapshotState.READY

    await until(ready, 5)
    return taken.id


async def test_a_snapshot_carries_the_vault(able: Service, lab: Lab) -> None:
    source = await box(able)
    await make(able, source)
    taken = await snapshot(able, source)
    before = egress(able).vaults[source.id]
    await able.lifecycle.delete(source.id)
    restored = await service_create(able, taken)
    assert egress(able).vaults[restored.id] == before
    assert able.runtime.specs[restored.id].trusted_ca == before["ca"]["certificate"]
    await change(able, restored, bindings={"delete": ["b"]})
    again = await service_create(able, taken)
    assert egress(able).vaults[again.id] == before
    await able.lifecycle.snapshots.delete(taken)
    held = [set(await able.store.sealed.of(holder)) for holder in (source.id, taken, restored.id, again.id)]
    assert held == [set(), set(), {"vault", "authority"}, {"vault", "authority"}]


async def service_create(service: Service, taken: str, **more: Any) -> Sandbox:
    return await service.create(snapshot_id=taken, **more)


async def test_a_restore_whose_policy_closes_a_bound_host_is_refused(able: Service) -> None:
    source = await box(able)
    await make(able, source)
    taken = await snapshot(able, source)
    boxes = set(able.world.boxes)
    with pytest.raises(InvalidRequest) as caught:
        await service_create(able, taken, network_policy=parse_policy({}))
    assert caught.value.code == Code.VAULT_INVALID and set(able.world.boxes) == boxes


async def test_without_the_key_a_restore_says_so_and_nothing_is_made(able: Service, lab: Lab) -> None:
    source = await box(able)
    await make(able, source)
    taken = await snapshot(able, source)
    await lab.crash(able)
    key = lab.settings.data_dir / "vault-key"
    key.rename(key.with_name("elsewhere"))
    later = await serve(lab)
    assert later.runtime.foretold == {}
    for attempt in (
        service_create(later, taken),
        box(later),
        make(later, source),
        later.lifecycle.vaults.get(source.id),
    ):
        with pytest.raises(Conflict) as caught:
            await attempt
        assert caught.value.code == Code.VAULT_KEY and "vault-key" in str(caught.value)
    assert not key.exists() and len(lab.world.boxes) == 1
    key.with_name("elsewhere").rename(key)
    assert (await service_create(later, taken)).status.state == "Running"


async def test_sources_are_read_when_they_are_told(able: Service, tmp_path: Path) -> None:
    sandbox = await box(able)
    await make(able, sandbox, type="env", name="TOKEN")
    assert egress(able).vaults[sandbox.id]["credentials"] == {"key": VALUE}
    path = tmp_path / "secrets" / "token"
    missing = {"replace": [{"name": "key", "source": {"type": "file", "path": str(path)}}]}
    with pytest.raises(InvalidRequest) as caught:
        await change(able, sandbox, credentials=missing)
    assert caught.value.code == Code.VAULT_SOURCE
    path.write_text("a\x01b")
    with pytest.raises(InvalidRequest):
        await change(able, sandbox, credentials=missing)
    path.write_text("first")
    await change(able, sandbox, credentials=missing)
    draft = path.with_name("draft")
    draft.write_text("second")
    draft.rename(path)

    async def rotated() -> bool:
        return bool(egress(able).vaults[sandbox.id]["credentials"] == {"key": "second"})

    await until(rotated, 10)
    assert (await able.lifecycle.vaults.get(sandbox.id)).revision == 2


async def test_a_source_that_is_gone_after_a_restart_is_told_as_missing(
    able: Service, lab: Lab, tmp_path: Path
) -> None:
    sandbox = await box(able)
    path = tmp_path / "secrets" / "token"
    path.write_text(VALUE)
    await make(able, sandbox, type="file", path=str(path))
    await lab.crash(able)
    os.unlink(path)
    later = await serve(lab)
    told = later.runtime.foretold[sandbox.id]
    assert told["credentials"] == {} and told["unavailable"] == ["key"]
    path.write_text("there again")

    async def mended() -> bool:
        told = egress(later).vaults.get(sandbox.id, {})
        return told.get("credentials") == {"key": "there again"} and told["unavailable"] == []

    await until(mended, 10)


async def test_values_of_sources_are_told_where_bindings_can_put_them(able: Service, tmp_path: Path) -> None:
    """Lines are for bodies. What is bound to a header afterwards, or changes, is told as missing."""
    sandbox = await box(able)
    path = tmp_path / "secrets" / "lines"
    path.write_text("one\ntwo\n")
    source = {"name": "lines", "source": {"type": "file", "path": str(path)}}
    await make(able, sandbox)
    await change(able, sandbox, credentials={"add": [source]})
    assert egress(able).vaults[sandbox.id]["credentials"]["lines"] == "one\ntwo"
    auth = {"type": "apiKey", "name": "x-key", "credential": "lines"}
    await change(able, sandbox, bindings={"replace": [{**BINDING, "auth": auth}]})
    told = egress(able).vaults[sandbox.id]
    assert told["unavailable"] == ["lines"] and "lines" not in told["credentials"]


async def test_roots_that_cannot_be_read_are_told_at_the_call(
    able: Service, lab: Lab, tmp_path: Path
) -> None:
    await lab.crash(able)
    vault = lab.settings.vault.model_copy(update={"extra_roots": tmp_path / "none"})
    lab.settings = lab.settings.model_copy(update={"vault": vault})
    service = await serve(lab)
    sandbox = await box(service)
    with pytest.raises(Conflict) as caught:
        await make(service, sandbox)
    assert "extra_roots" in str(caught.value)


async def test_sources_of_the_server_are_for_whom_it_says(able: Service) -> None:
    sandbox = await box(able)
    with pytest.raises(Forbidden):
        await make(able, sandbox, TENANT, type="env", name="TOKEN")
    with pytest.raises(Forbidden):
        await make(able, sandbox, type="env", name="HOME")
    assert (await make(able, sandbox, TENANT)).revision == 1


async def test_a_paused_sandbox_can_be_given_credentials(able: Service) -> None:
    sandbox = await box(able)
    await able.lifecycle.pause(sandbox.id)
    await make(able, sandbox)
    await able.lifecycle.resume(sandbox.id)
    assert sandbox.id in egress(able).vaults
