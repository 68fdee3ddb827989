# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Credential vaults as values: credentials, and the bindings that say which requests get them.

A vault is always whole: `created` and `patched` return one in which every name is known, every binding
decides alone, or raise. Whether the network policy lets its hosts through is `vaultreach`'s to say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Generic, TypeVar
from urllib.parse import unquote

from casulo.model.errors import Code, Conflict, InvalidRequest, NotFound
from casulo.model.secret import Secret

MOST = 256
"""Credentials, and bindings, of one vault."""

_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_MOST_ROUNDS = 6
PORTS = {"https": 443, "http": 80}
HEADER, BODY, PATH, QUERY = "header", "body", "path", "query"


@dataclass(frozen=True)
class Source:
    """Where a value comes from: given `inline`, or found by the server when it is used."""

    type: str
    value: Secret | None = None
    env: str = ""
    file: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Credential:
    """A named value. `revision` is the vault's in which it last changed."""

    name: str
    source: Source
    revision: int = 0


@dataclass(frozen=True)
class Match:
    """The requests that a binding is about; all members are filled in, hosts in A-labels and lower case."""

    hosts: tuple[str, ...]
    schemes: tuple[str, ...] = ("https",)
    ports: tuple[int, ...] = (443,)
    methods: tuple[str, ...] = ("GET", "POST", "PUT", "PATCH", "DELETE")
    paths: tuple[str, ...] = ("/*",)


@dataclass(frozen=True)
class Header:
    """A header that gets a credential's value."""

    name: str
    credential: str


@dataclass(frozen=True)
class Substitution:
    """A text that stands for a credential in some parts of a request."""

    credential: str
    placeholder: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Auth:
    """How a request is given its credentials."""

    type: str
    credential: str = ""
    name: str = ""
    headers: tuple[Header, ...] = ()
    substitutions: tuple[Substitution, ...] = ()

    @property
    def used(self) -> frozenset[str]:
        """The credentials that it names."""
        return frozenset({*self._plain, *(each.credential for each in self.substitutions)})

    @property
    def in_headers(self) -> frozenset[str]:
        """Those of them whose values become part of a header."""
        placed = (each.credential for each in self.substitutions if HEADER in each.places)
        return frozenset({*self._plain, *placed})

    @property
    def _plain(self) -> list[str]:
        """Those that are put where nothing was."""
        return [name for name in (self.credential, *(each.credential for each in self.headers)) if name]


@dataclass(frozen=True)
class Binding:
    """Which requests get which credentials."""

    name: str
    match: Match
    auth: Auth
    redact_bodies: bool = False
    revision: int = 0


@dataclass(frozen=True)
class Vault:
    """What one sandbox's requests may be given."""

    revision: int
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    bindings: Mapping[str, Binding] = field(default_factory=dict)


_N = TypeVar("_N", Credential, Binding)


@dataclass(frozen=True)
class Changes(Generic[_N]):
    """What a patch does to credentials, or to bindings. First `delete`, then `replace`, then `add`."""

    add: tuple[_N, ...] = ()
    replace: tuple[_N, ...] = ()
    delete: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All that it names."""
        return [*self.delete, *(each.name for each in (*self.replace, *self.add))]


@dataclass(frozen=True)
class Patch:
    """A change of a vault, which may have to be at a certain revision for it."""

    credentials: Changes[Credential] = Changes()
    bindings: Changes[Binding] = Changes()
    expected_revision: int | None = None


def created(credentials: Sequence[Credential], bindings: Sequence[Binding]) -> Vault:
    """A new vault, at revision 1."""
    first = Patch(Changes(add=tuple(credentials)), Changes(add=tuple(bindings)))
    return _changed(Vault(0), first)


def patched(vault: Vault, patch: Patch) -> Vault:
    """The vault after a change, one revision later; nothing of a change that cannot be made whole."""
    if patch.expected_revision is not None and patch.expected_revision != vault.revision:
        raise Conflict(
            f"the vault is at revision {vault.revision}, not at {patch.expected_revision}",
            code=Code.VAULT_REVISION,
            hint="read it again, and decide again",
        )
    return _changed(vault, patch)


def vault_not_found(sandbox_id: str) -> NotFound:
    """There is none (any more)."""
    return NotFound(
        f"sandbox {sandbox_id} has no credential vault", code=Code.VAULT_NOT_FOUND, hint="create one first"
    )


def invalid(message: str, hint: str = "") -> InvalidRequest:
    """A request about a vault that is wrong."""
    return InvalidRequest(message, code=Code.VAULT_INVALID, hint=hint)


def _changed(vault: Vault, patch: Patch) -> Vault:
    revision = vault.revision + 1
    wanted = Vault(
        revision,
        _applied("credential", vault.credentials, patch.credentials, revision),
        _applied("binding", vault.bindings, patch.bindings, revision),
    )
    _check_known(wanted)
    _check_headers(wanted)
    _check_unambiguous(wanted.bindings.values())
    return wanted


def _applied(what: str, held: Mapping[str, _N], changes: Changes[_N], revision: int) -> dict[str, _N]:
    twice = [name for name, count in Counter(changes.names).items() if count > 1]
    if twice:
        raise invalid(f"{what} {twice[0]!r} is named more than once", "one change of each name at a time")
    wanted = dict(held)
    for name in changes.delete:
        if wanted.pop(name, None) is None:
            raise invalid(f"there is no {what} {name!r} to delete")
    for item in changes.replace:
        if item.name not in wanted:
            raise invalid(f"there is no {what} {item.name!r} to replace", "add it")
        wanted[item.name] = replace(item, revision=revision)
    for item in changes.add:
        if item.name in wanted:
            raise invalid(f"there is a {what} {item.name!r} already", "replace it")
        wanted[item.name] = replace(item, revision=revision)
    if len(wanted) > MOST:
        raise invalid(f"a vault holds at most {MOST} {what}s")
    return wanted


def _check_known(vault: Vault) -> None:
    for binding in vault.bindings.values():
        for name in sorted(binding.auth.used - vault.credentials.keys()):
            raise invalid(
                f"binding {binding.name!r} uses the credential {name!r}, which there would not be",
                "add the credential first, or delete the binding before it",
            )


def _check_headers(vault: Vault) -> None:
    """What came inline is looked at now; what comes from elsewhere, whenever it is read."""
    for binding in vault.bindings.values():
        for name in sorted(binding.auth.in_headers):
            value = vault.credentials[name].source.value
            if value is not None and not fits_header(value):
                raise invalid(
                    f"credential {name!r} cannot be part of a header, as binding {binding.name!r} wants it",
                    "headers hold no control characters, and no blanks at their ends",
                )


def fits_header(value: Secret) -> bool:
    """Whether a header could carry it unchanged."""
    text = value.reveal()
    return text == text.strip(" \t") and all(c == "\t" or " " <= c != "\x7f" for c in text)


def _check_unambiguous(bindings: Iterable[Binding]) -> None:
    """An exact host goes before a wildcard; beyond that no request may have two bindings to choose from."""
    for one, other in combinations(bindings, 2):
        host = _common_host(one.match.hosts, other.match.hosts)
        if host and _overlap(one.match, other.match):
            raise invalid(
                f"bindings {one.name!r} and {other.name!r} both match some requests to {host}",
                "keep them apart by methods or paths",
            )


def _common_host(some: Iterable[str], others: Sequence[str]) -> str:
    """A host of `some` that is of one kind with one of `others` and meets it; empty if there is none."""
    for host in some:
        if host in others or any(_nested(host, other) for other in others):
            return host
    return ""


def _nested(one: str, other: str) -> bool:
    if not (one.startswith("*.") and other.startswith("*.")):
        return False
    return one.endswith(other[1:]) or other.endswith(one[1:])


def _overlap(one: Match, other: Match) -> bool:
    if not set(zip_ports(one)) & set(zip_ports(other)) or not set(one.methods) & set(other.methods):
        return False
    return any(_paths_meet(path, another) for path in one.paths for another in other.paths)


def zip_ports(match: Match) -> list[tuple[str, int]]:
    """Each scheme with its port, as far as the match has it."""
    return [(scheme, PORTS[scheme]) for scheme in match.schemes if PORTS[scheme] in match.ports]


def _paths_meet(one: str, other: str) -> bool:
    """A request matches a path in two readings of its escapes, so two paths must meet in both."""
    return all(_readings_meet(read(one), read(other)) for read in (_spelled, _undone))


def _readings_meet(one: str, other: str) -> bool:
    if one.endswith("*") and other.endswith("*"):
        return one[:-1].startswith(other[:-1]) or other[:-1].startswith(one[:-1])
    if one.endswith("*"):
        return other.startswith(one[:-1])
    return one.startswith(other[:-1]) if other.endswith("*") else one == other


def _spelled(path: str) -> str:
    """Escapes in upper case, none where none is needed; in the words of the egress process, canonical."""
    plain = _ESCAPE.sub(lambda found: _kept(unquote(found[0], "latin-1")), path)
    return "".join(_escaped(c) if c in '"<>' else c for c in plain)


def _kept(char: str) -> str:
    return char if char.isascii() and (char.isalnum() or char in "-._~") else _escaped(char)


def _escaped(char: str) -> str:
    return f"%{ord(char):02X}"


def _undone(path: str) -> str:
    """Every escape undone, those of escapes too; a star that was escaped is no star at the end."""
    star, read = path.endswith("*"), path.removesuffix("*")
    for _ in range(_MOST_ROUNDS):
        read = unquote(read, "latin-1")
    return read + "*" if star else read + "\0"
