# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The whole of a vault as bytes, values included: for sealing, and for nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from casulo.model.vault import Binding, Credential, Source, Vault
from casulo.model.vaultwire import auth_wire, match_wire, parse_binding, parse_credential


def dump(vault: Vault) -> bytes:
    """The bytes from which `load` makes an equal vault."""
    told = {
        "revision": vault.revision,
        "credentials": [_credential(each) for each in vault.credentials.values()],
        "bindings": [_binding(each) for each in vault.bindings.values()],
    }
    return json.dumps(told).encode()


def load(content: bytes) -> Vault:
    """The vault that was dumped."""
    told = json.loads(content)
    credentials = [_revised(item, parse_credential) for item in told["credentials"]]
    bindings = [_revised(item, parse_binding) for item in told["bindings"]]
    return Vault(
        told["revision"], {each.name: each for each in credentials}, {each.name: each for each in bindings}
    )


def _revised(item: dict[str, Any], parse: Any) -> Any:
    revision = item.pop("revision")
    return replace(parse(item, "kept"), revision=revision)


def _credential(credential: Credential) -> dict[str, Any]:
    return {
        "name": credential.name,
        "source": _source(credential.source),
        "revision": credential.revision,
    }


def _source(source: Source) -> dict[str, Any]:
    if source.value is not None:
        return {"type": source.type, "value": source.value.reveal()}
    if source.type == "env":
        return {"type": "env", "name": source.env}
    if source.type == "file":
        return {"type": "file", "path": source.file}
    return {"type": source.type, "command": list(source.command)}


def _binding(binding: Binding) -> dict[str, Any]:
    return {
        "name": binding.name,
        "match": match_wire(binding.match),
        "auth": auth_wire(binding.auth),
        "redactBodies": binding.redact_bodies,
        "revision": binding.revision,
    }
