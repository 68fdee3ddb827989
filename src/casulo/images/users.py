# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Who an image's USER is, by the image's own /etc/passwd and /etc/group. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from casulo.model.errors import Code, InvalidRequest

_HIGHEST = 2**32 - 2


@dataclass(frozen=True)
class User:
    """Numbers and home directory of a process; `groups` are the supplementary ones."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"
    name: str = ""


def resolve(wanted: str, passwd: str, group: str) -> User:
    """From `name`, `uid`, `name:group`, `uid:gid` and so on; empty is root.

    As in engines a number need not be in the files, and a name must be.
    """
    who, colon, which = wanted.partition(":")
    user = _user(who or "0", passwd)
    if colon and which:
        return User(user.uid, _group(which, group), (), user.home, user.name)
    return User(user.uid, user.gid, _memberships(user, group), user.home, user.name)


def _user(who: str, passwd: str) -> User:
    for fields in _lines(passwd, 7):
        uid, gid = _number(fields[2]), _number(fields[3])
        if uid is not None and gid is not None and (fields[0] == who or uid == _number(who)):
            return User(uid, gid, (), fields[5] or "/", fields[0])
    number = _number(who)
    if number is None:
        raise _unknown(f"the user {who!r} is not in the image's /etc/passwd")
    return User(number, 0, (), "/root" if number == 0 else "/")


def _group(which: str, group: str) -> int:
    for fields in _lines(group, 3):
        gid = _number(fields[2])
        if gid is not None and (fields[0] == which or gid == _number(which)):
            return gid
    number = _number(which)
    if number is None:
        raise _unknown(f"the group {which!r} is not in the image's /etc/group")
    return number


def _memberships(user: User, group: str) -> tuple[int, ...]:
    if not user.name:
        return ()
    found = (_number(fields[2]) for fields in _lines(group, 4) if user.name in fields[3].split(","))
    return tuple(sorted({gid for gid in found if gid is not None} - {user.gid}))


def _lines(text: str, columns: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= columns and not line.startswith("#"):
            yield fields


def _number(text: str) -> int | None:
    return (
        int(text) if text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= _HIGHEST else None
    )


def _unknown(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the image cannot be started: {why}", code=Code.IMAGE_INVALID, hint="ask for a user by number"
    )
