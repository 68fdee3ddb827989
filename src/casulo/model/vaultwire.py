# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Credential vaults between wire and values: strict parsing, and telling without a value.

Nothing of what was sent is repeated where it could be a value: errors name members, never contents of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar
from urllib.parse import unquote

import idna

from casulo.model import targets
from casulo.model.errors import InvalidRequest
from casulo.model.secret import Secret
from casulo.model.vault import (
    BODY,
    HEADER,
    PATH,
    PORTS,
    QUERY,
    Auth,
    Binding,
    Changes,
    Credential,
    Header,
    Match,
    Patch,
    Source,
    Substitution,
    Vault,
    invalid,
    zip_ports,
)

T = TypeVar("T")
_LONGEST_NAME = 253
_LONGEST_VALUE = 64 << 10
_MOST_ITEMS = 64
_LEAST_PLACEHOLDER = 4
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESERVED = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "content-encoding",
        "accept-encoding",
        "range",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "forwarded",
    }
)
_RESERVED_PREFIXES = ("proxy-", "x-forwarded-")
_AUTH_MEMBERS = {
    "bearer": ("credential",),
    "basic": ("credential",),
    "apiKey": ("credential", "name"),
    "customHeaders": ("headers",),
    "passthrough": (),
}
_PLACES = (PATH, QUERY, HEADER, BODY)
_SOURCES = {"inline": "value", "env": "name", "file": "path", "exec": "command"}


def parse_create(data: Any) -> tuple[tuple[Credential, ...], tuple[Binding, ...]]:
    """The body that makes a vault."""
    members = _members(data, ("credentials", "bindings"), "the body")
    credentials = _each(members, "credentials", "credentials", parse_credential)
    return credentials, _each(members, "bindings", "bindings", parse_binding)


def parse_patch(data: Any) -> Patch:
    """The body that changes one."""
    members = _members(data, ("expectedRevision", "credentials", "bindings"), "the body")
    expected = members.get("expectedRevision")
    if expected is not None and (isinstance(expected, bool) or not isinstance(expected, int) or expected < 0):
        raise invalid("expectedRevision must be a whole number")
    return Patch(
        _changes(members, "credentials", parse_credential),
        _changes(members, "bindings", parse_binding),
        expected,
    )


def parse_credential(data: Any, where: str) -> Credential:
    """One credential with its source."""
    members = _members(data, ("name", "source"), where)
    name = _name(members, where)
    return Credential(name, _source(members.get("source"), f"credential {name!r}"))


def parse_binding(data: Any, where: str) -> Binding:
    """One binding, its defaults filled in."""
    members = _members(data, ("name", "match", "auth", "redactBodies"), where)
    name = _name(members, where)
    where = f"binding {name!r}"
    redact = members.get("redactBodies")
    if redact is not None and not isinstance(redact, bool):
        raise invalid(f"{where}: redactBodies must be true or false")
    return Binding(name, _match(members.get("match"), where), _auth(members.get("auth"), where), bool(redact))


def state(vault: Vault) -> dict[str, Any]:
    """A vault without its values, sorted by name."""
    return {
        "revision": vault.revision,
        "credentials": [credential_state(vault.credentials[name]) for name in sorted(vault.credentials)],
        "bindings": [binding_state(vault.bindings[name]) for name in sorted(vault.bindings)],
    }


def credential_state(credential: Credential) -> dict[str, Any]:
    """Of a credential, whence it comes."""
    return {
        "name": credential.name,
        "sourceType": credential.source.type,
        "revision": credential.revision,
    }


def binding_state(binding: Binding) -> dict[str, Any]:
    """Of a binding, what it matches and how it injects; not which credential."""
    auth = {"type": binding.auth.type, **({"name": binding.auth.name} if binding.auth.name else {})}
    told = {
        "name": binding.name,
        "revision": binding.revision,
        "match": match_wire(binding.match),
        "auth": auth,
    }
    return {**told, "redactBodies": True} if binding.redact_bodies else told


def match_wire(match: Match) -> dict[str, list[Any]]:
    """A match with all its members."""
    return {name: list(getattr(match, name)) for name in ("hosts", "schemes", "ports", "methods", "paths")}


def auth_wire(auth: Auth) -> dict[str, Any]:
    """Everything of it; credentials by their names."""
    return {
        "type": auth.type,
        "credential": auth.credential,
        "name": auth.name,
        "headers": [{"name": each.name, "credential": each.credential} for each in auth.headers],
        "substitutions": [
            {"credential": each.credential, "placeholder": each.placeholder, "in": list(each.places)}
            for each in auth.substitutions
        ],
    }


def _changes(members: Mapping[str, Any], what: str, parse: Callable[[Any, str], T]) -> Changes[Any]:
    if members.get(what) is None:
        return Changes()
    given = _members(members[what], ("add", "replace", "delete"), what)
    gone = _list(given, "delete", what)
    if not all(isinstance(name, str) for name in gone):
        raise invalid(f"{what}.delete: names are texts")
    return Changes(
        _each(given, "add", f"{what}.add", parse),
        _each(given, "replace", f"{what}.replace", parse),
        tuple(gone),
    )


def _source(data: Any, where: str) -> Source:
    if not isinstance(data, dict):
        raise invalid(f"{where}: source must be an object")
    kind = "inline" if data.get("type") is None else data["type"]
    if not isinstance(kind, str) or kind not in _SOURCES:
        raise invalid(f"{where}: unknown type of source", f"known: {', '.join(_SOURCES)}")
    member = _SOURCES[kind]
    value = _members(data, ("type", member), f"{where}: source").get(member)
    if kind == "exec":
        if not isinstance(value, list) or not value or not all(map(_plain, value)):
            raise invalid(f"{where}: source.command must be a list of texts")
        return Source(kind, command=tuple(value))
    if not _plain(value):
        raise invalid(f"{where}: source.{member} must be a text that is not empty, without NUL characters")
    if len(value) > _LONGEST_VALUE:
        raise invalid(f"{where}: source.{member} is longer than {_LONGEST_VALUE >> 10} KiB")
    if kind == "inline":
        return Source(kind, Secret(value))
    return Source(kind, env=value) if kind == "env" else Source(kind, file=value)


def _plain(value: Any) -> TypeGuard[str]:
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    return not any("\ud800" <= c <= "\udfff" for c in value)


def _match(data: Any, where: str) -> Match:
    where = f"{where}: match"
    members = _members(data, ("hosts", "schemes", "ports", "methods", "paths"), where)
    hosts = _distinct(_host(item, where) for item in _bounded(members, "hosts", where))
    if not hosts:
        raise invalid(f"{where}: hosts must name at least one host")
    schemes = _distinct(
        _word(item, tuple(PORTS), f"{where}: schemes") for item in _list(members, "schemes", where)
    )
    schemes = schemes or ("https",)
    methods = _distinct(_method(item, where) for item in _bounded(members, "methods", where))
    paths = _distinct(_path(item, where) for item in _bounded(members, "paths", where))
    return Match(
        hosts, schemes, _ports(members, schemes, where), methods or Match(hosts).methods, paths or ("/*",)
    )


def _ports(members: Mapping[str, Any], schemes: Sequence[str], where: str) -> tuple[int, ...]:
    """The port follows the scheme; who names ports can only leave some of these out."""
    given = _list(members, "ports", where)
    if not all(
        isinstance(item, int) and not isinstance(item, bool) and item in PORTS.values() for item in given
    ):
        raise invalid(f"{where}: ports can only be 80 and 443", "leave them out: the port follows the scheme")
    if not given:
        return tuple(PORTS[scheme] for scheme in schemes)
    ports = _distinct(given)
    used = zip_ports(Match((), tuple(schemes), ports))
    if {port for _, port in used} != set(ports):
        raise invalid(f"{where}: ports do not fit the schemes", "http is on port 80, https on port 443")
    return ports


def _host(data: Any, where: str) -> str:
    if not isinstance(data, str) or not data.strip():
        raise invalid(f"{where}: a host must be a text")
    given = data.strip()
    star, name = ("*.", given[2:]) if given.startswith("*.") else ("", given)
    if targets.is_address(name.strip("[]")):
        raise invalid(f"{where}: {given!r} is an address", "name the host: its certificate is checked")
    try:
        targets.checked(star + name, where)
        ascii_name = name.rstrip(".").lower()
        ascii_name = ascii_name if ascii_name.isascii() else idna.encode(ascii_name, uts46=True).decode()
    except (InvalidRequest, idna.IDNAError):
        raise invalid(f"{where}: {given!r} is no host", "write api.example.com or *.example.com") from None
    if "." not in ascii_name or ":" in ascii_name:
        raise invalid(f"{where}: {given!r} has no dot where a host name needs one")
    return star + ascii_name


def _method(data: Any, where: str) -> str:
    if not isinstance(data, str) or not _TOKEN.fullmatch(data):
        raise invalid(f"{where}: methods are words such as GET")
    return data.upper()


def _path(data: Any, where: str) -> str:
    """What could never match, since requests are brought to a normal form, is refused."""
    hint = "write /exactly/this or /all/below/*"
    if not isinstance(data, str) or not data.startswith("/") or "*" in data[:-1]:
        raise invalid(f"{where}: a path begins with / and may end with *", hint)
    if any(c in data for c in "?# ") or _BAD_ESCAPE.search(data) or not data.isascii():
        raise invalid(f"{where}: a path has no ?, # or blank, and % only before two hexadecimal digits", hint)
    read = unquote(data.rstrip("*"), "latin-1")
    if (
        any(part in (".", "..") for part in read.split("/"))
        or "//" in data
        or "\\" in read
        or not read.isprintable()
    ):
        raise invalid(f"{where}: a path has no dots for parts, empty parts, \\ or control characters", hint)
    return data


def _auth(data: Any, where: str) -> Auth:
    where = f"{where}: auth"
    members = _members(data, ("type", "credential", "name", "headers", "substitutions"), where)
    kind = members.get("type")
    if not isinstance(kind, str) or kind not in _AUTH_MEMBERS:
        raise invalid(f"{where}: unknown type", f"known: {', '.join(_AUTH_MEMBERS)}")
    needed = _AUTH_MEMBERS[kind]
    for member in ("credential", "name", "headers"):
        if member not in needed and members.get(member):
            raise invalid(f"{where}: the type {kind} has no {member}")
    headers = _each(members, "headers", f"{where}: headers", _header)
    if "headers" in needed and not headers:
        raise invalid(f"{where}: headers must name at least one")
    _apart([each.name.lower() for each in headers], f"{where}: a header")
    return Auth(
        kind,
        _reference(members, where) if "credential" in needed else "",
        _header_name(members.get("name"), where) if "name" in needed else "",
        headers,
        _substitutions(members, where),
    )


def _header(data: Any, where: str) -> Header:
    members = _members(data, ("name", "credential"), where)
    return Header(_header_name(members.get("name"), where), _reference(members, where))


def _header_name(data: Any, where: str) -> str:
    if not isinstance(data, str) or not _TOKEN.fullmatch(data):
        raise invalid(f"{where}: name must be the name of a header")
    plain = data.lower().replace("_", "-")  # which some servers take for one another
    if plain in _RESERVED or plain.startswith(_RESERVED_PREFIXES):
        raise invalid(f"{where}: the header {data!r} is reserved: it says how the request travels")
    return data


def _substitutions(members: Mapping[str, Any], where: str) -> tuple[Substitution, ...]:
    found = _each(members, "substitutions", f"{where}: substitutions", _substitution)
    for place in _PLACES:
        words = [each.placeholder for each in found if place in each.places]
        for index, word in enumerate(words):
            if any(word in other or other in word for other in words[index + 1 :]):
                raise invalid(
                    f"{where}: two placeholders for one {place} are alike, or one is part of the other"
                )
    return found


def _substitution(data: Any, where: str) -> Substitution:
    members = _members(data, ("credential", "placeholder", "in"), where)
    word = members.get("placeholder")
    if not _plain(word) or len(word) < _LEAST_PLACEHOLDER or not word.isprintable():
        raise invalid(
            f"{where}: placeholder must be a text of {_LEAST_PLACEHOLDER} or more printable characters",
            "choose one that nothing else looks like, e.g. __API_KEY__",
        )
    places = _distinct(_word(item, _PLACES, f"{where}: in") for item in _list(members, "in", where))
    if not places:
        raise invalid(f"{where}: in must name at least one of {', '.join(_PLACES)}")
    return Substitution(_reference(members, where), word, places)


def _reference(members: Mapping[str, Any], where: str) -> str:
    name = members.get("credential")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}: credential must name one")
    return name


def _name(members: Mapping[str, Any], where: str) -> str:
    name = members.get("name")
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise invalid(f"{where}: name must be a printable text of 1 to {_LONGEST_NAME} characters")
    return name


def _word(data: Any, known: Sequence[str], where: str) -> str:
    if not isinstance(data, str) or data not in known:
        raise invalid(f"{where}: only {', '.join(known)} are known")
    return data


def _members(data: Any, known: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise invalid(f"{where} must be an object")
    if any(name not in known for name in data):
        raise invalid(f"{where}: there is a member that is not known", f"known: {', '.join(known)}")
    return data


def _list(members: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = members.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"{where}: {name} must be a list")
    return value


def _bounded(members: Mapping[str, Any], name: str, where: str) -> list[Any]:
    found = _list(members, name, where)
    if len(found) > _MOST_ITEMS:
        raise invalid(f"{where}: {name} holds at most {_MOST_ITEMS}")
    return found


def _each(members: Mapping[str, Any], name: str, where: str, parse: Callable[[Any, str], T]) -> tuple[T, ...]:
    return tuple(
        parse(item, f"{where} {number}") for number, item in enumerate(_list(members, name, where), 1)
    )


def _distinct(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def _apart(words: Sequence[str], what: str) -> None:
    if len(set(words)) != len(words):
        raise invalid(f"{what} is named twice")
