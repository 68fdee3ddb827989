# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Vaults in wire form, for the tests of their rules."""

from __future__ import annotations

from typing import Any

import pytest

from casulo.model.errors import Code, InvalidRequest
from casulo.model.vault import Vault, created
from casulo.model.vaultwire import parse_create

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
