# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a rule of a network policy can be about: names, wildcards, addresses, networks, presets; and ports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_network
from typing import Any

import idna

from casulo.model import presets
from casulo.model.errors import Code, InvalidRequest

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_MAX_NAME = 253


@dataclass(frozen=True)
class Ports:
    """A range, both ends included."""

    first: int
    last: int

    @property
    def text(self) -> str:
        """As it is written."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> Ports:
        """From `443` or `8000-8010`; ValueError for anything else."""
        low, dash, high = text.partition("-")
        if not low.isascii() or not low.isdigit() or (dash and not (high.isascii() and high.isdigit())):
            raise ValueError(text)
        found = cls(int(low), int(high or low))
        if not 0 < found.first <= found.last < 65536:
            raise ValueError(text)
        return found


def ports(data: Any, where: str) -> Ports:
    """A port or range from its wire form."""
    try:
        if isinstance(data, bool) or not isinstance(data, int | str):
            raise ValueError(data)
        return Ports.parse(str(data))
    except ValueError:
        raise _invalid(f"{where}: {data!r} is no port", "write 443 or '8000-8010'") from None


def checked(target: str, where: str) -> str:
    """The target as it was written, if it is one."""
    if is_address(target):
        return target
    if presets.is_preset(target):
        presets.require(target, where)
        return target
    name = target[2:] if target.startswith("*.") else target
    if "*" in name:
        raise _invalid(
            f"{where}: {target!r}: a star may only stand for everything below a name",
            "write *.example.com; for everything set defaultAction",
        )
    _ascii(name, target, where)
    return target


def canonical(target: str) -> str:
    """The form in which two targets are compared."""
    try:
        return str(ip_network(target, strict=False))
    except ValueError:
        text = target.strip().rstrip(".").lower()
    if text.isascii():
        return text
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    try:
        return star + idna.encode(name, uts46=True).decode()
    except idna.IDNAError:
        return text


def is_address(target: str) -> bool:
    """Whether it is an address or a network."""
    try:
        ip_network(target, strict=False)
    except ValueError:
        return False
    return True


def is_ipv6(target: str) -> bool:
    """Whether it is an IPv6 address or network."""
    return is_address(target) and isinstance(ip_network(target, strict=False), IPv6Network)


def _ascii(name: str, target: str, where: str) -> None:
    text = name.rstrip(".") if name.endswith(".") and not name.endswith("..") else name
    if not text.isascii():
        try:
            text = idna.encode(text, uts46=True).decode()
        except idna.IDNAError as error:
            raise _invalid(f"{where}: {target!r} is no host name: {error}") from None
    labels = text.lower().split(".")
    if len(text) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise _invalid(f"{where}: {target!r} is no host name, address or network")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        raise _invalid(f"{where}: {target!r} is neither an address nor a host name")


def _invalid(message: str, hint: str = "") -> InvalidRequest:
    hint = hint or "write example.com, *.example.com, 192.0.2.1, 192.0.2.0/24 or preset:pypi"
    return InvalidRequest(message, code=Code.NETWORK_POLICY_INVALID, hint=hint)
