# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A sandbox's credential vault: keys that its requests are given on their way, and that it never sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from casulo.client.channel import Channel
from casulo.client.records import parse
from casulo.model.errors import Conflict, InvalidRequest, NotFound
from casulo.model.sandbox import EGRESS_PORT

if TYPE_CHECKING:
    from casulo.client.lifecycle import AsyncClient

Wire = Mapping[str, Any]
"""`{"name": "key", "source": {"value": "…"}}`, or a binding, as the protocol writes them."""

_ATTEMPTS = 5
_PATH = "/credential-vault"


class AsyncVault:
    """The vault of one sandbox that was created with `credential_proxy`. Answers never hold a value."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._channel = Channel(
            client.transport,
            lambda: client.endpoint(sandbox_id, EGRESS_PORT, server_proxy=True),
            client.connection.headers,
        )

    async def create(self, credentials: Iterable[Wire] = (), bindings: Iterable[Wire] = ()) -> dict[str, Any]:
        """Make the vault; Conflict when there is one. Returns its state."""
        body = {"credentials": [*map(dict, credentials)], "bindings": [*map(dict, bindings)]}
        return await self._state("POST", body)

    async def get(self) -> dict[str, Any]:
        """Its revision, and what it holds without the values; NotFound when there is none."""
        return await self._state("GET")

    async def patch(
        self,
        *,
        credentials: Mapping[str, Sequence[Any]] | None = None,
        bindings: Mapping[str, Sequence[Any]] | None = None,
        expected_revision: int | None = None,
    ) -> dict[str, Any]:
        """Delete, replace and add in one step: `{"add": […], "replace": […], "delete": ["name"]}`.

        Conflict when the vault is not at `expected_revision` any more.
        """
        body = {"credentials": credentials, "bindings": bindings, "expectedRevision": expected_revision}
        return await self._state("PATCH", {name: part for name, part in body.items() if part is not None})

    async def delete(self) -> None:
        """Forget everything in it; from the next request on nothing is injected."""
        await self._channel.request("DELETE", _PATH)

    async def credential(self, name: str) -> dict[str, Any]:
        """One credential, without its value."""
        return await self._read(f"/credentials/{quote(name, safe='')}")

    async def binding(self, name: str) -> dict[str, Any]:
        """One binding."""
        return await self._read(f"/bindings/{quote(name, safe='')}")

    async def set(
        self,
        name: str,
        value: str | None = None,
        *,
        env: str | None = None,
        file: str | None = None,
        command: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Add or replace a credential, in a new vault if there is none.

        Instead of a value it may name a variable, a file or a command of the server, where that allows it.
        """
        return await self._put("credentials", {"name": name, "source": _source(value, env, file, command)})

    async def bind(
        self,
        name: str,
        *hosts: str,
        credential: str | None = None,
        auth: str = "bearer",
        header: str | None = None,
        headers: Mapping[str, str] | None = None,
        substitutions: Iterable[Wire] = (),
        schemes: Sequence[str] = (),
        methods: Sequence[str] = (),
        paths: Sequence[str] = (),
        redact_bodies: bool = False,
    ) -> dict[str, Any]:
        """Add or replace a binding: requests to `hosts` get the credential in the way that `auth` says.

        `bearer` and `basic` set Authorization, `apiKey` sets `header`, `customHeaders` sets `headers` (names
        of headers to names of credentials), `passthrough` only makes `substitutions`.
        """
        match = {
            "hosts": list(hosts),
            "schemes": list(schemes),
            "methods": list(methods),
            "paths": list(paths),
        }
        told = {"type": auth, "credential": credential, "name": header}
        pairs = [{"name": key, "credential": each} for key, each in (headers or {}).items()]
        lists = {"headers": pairs, "substitutions": [*map(dict, substitutions)]}
        binding = {
            "name": name,
            "match": {key: value for key, value in match.items() if value},
            "auth": {key: each for key, each in {**told, **lists}.items() if each},
            **({"redactBodies": True} if redact_bodies else {}),
        }
        return await self._put("bindings", binding)

    async def remove(self, *credentials: str) -> dict[str, Any]:
        """Take credentials out that no binding uses any more."""
        return await self.patch(credentials={"delete": credentials})

    async def unbind(self, *bindings: str) -> dict[str, Any]:
        """Take bindings out; their credentials stay."""
        return await self.patch(bindings={"delete": bindings})

    async def _put(self, what: str, item: dict[str, Any]) -> dict[str, Any]:
        """Decides by what is there, and again when somebody else changed that meanwhile."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._put_once(what, item)
            except Conflict:
                continue
        return await self._put_once(what, item)

    async def _put_once(self, what: str, item: dict[str, Any]) -> dict[str, Any]:
        try:
            held = await self.get()
        except NotFound:
            return await self._state("POST", {what: [item]})
        known = any(each["name"] == item["name"] for each in held[what])
        change = {"replace" if known else "add": [item]}
        return await self._state("PATCH", {what: change, "expectedRevision": held["revision"]})

    async def _read(self, path: str) -> dict[str, Any]:
        return parse(dict, (await self._channel.request("GET", _PATH + path)).json())

    async def _state(self, method: str, body: object = None) -> dict[str, Any]:
        return parse(dict, (await self._channel.request(method, _PATH, content=body)).json())


def _source(
    value: str | None, env: str | None, file: str | None, command: Sequence[str] | None
) -> dict[str, Any]:
    kinds = {
        "inline": ("value", value),
        "env": ("name", env),
        "file": ("path", file),
        "exec": ("command", None if command is None else list(command)),
    }
    given = [{"type": kind, member: each} for kind, (member, each) in kinds.items() if each is not None]
    if len(given) != 1:
        raise InvalidRequest("give a value, or one of env, file and command")
    return given[0]
