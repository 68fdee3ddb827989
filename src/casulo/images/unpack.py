# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Putting one layer's members onto disk, in the form in which overlayfs stacks layers.

What comes from the archive decides nothing but what is below the given directory: names with `..`
are refused, a leading slash means the image's root, links are resolved by the kernel inside that
root. Deletions become overlayfs whiteouts and opaque directories.

    kept      owner (shifted), mode with setuid bits, times, hard links, pipes, `user.*` attributes
    left out  device nodes, since a sandbox has its own /dev; file capabilities and every attribute
              outside `user.*`: nosuid mounts void the first, overlayfs and LSMs would obey the others

Setuid bits stay because they are part of the image; sandboxes mount it nosuid.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from casulo.images import rooted
from casulo.images.ids import Ids
from casulo.images.tarstream import Archive, Entry, Kind
from casulo.model.errors import Code, InvalidRequest

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
_RESERVED = b".wh..wh."
_OPEN_PARENTS = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_ARCHIVE_FAULTS = (
    errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOENT, errno.EEXIST, errno.EFBIG,
)  # fmt: skip
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Budget:
    """What the layers of one image may come to together: against archives that unpack to any size."""

    def __init__(self, size: int = 1 << 40, entries: int = 10_000_000) -> None:
        self._size = size
        self._bytes_left = size
        self._entries = entries
        self._entries_left = entries

    def spend(self, entry: Entry) -> None:
        """Count one more member; InvalidRequest when it is too much."""
        self._bytes_left -= entry.size
        self._entries_left -= 1
        if self._bytes_left < 0:
            raise _refused(entry, f"the image unpacks to more than {self._size} bytes")
        if self._entries_left < 0:
            raise _refused(entry, f"the image has more than {self._entries} members")


@dataclass
class Tally:
    """What an unpacked layer came to. `left_out` counts members and attributes by reason."""

    bytes: int = 0
    entries: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, what: str) -> None:
        """Count something that is not on disk."""
        self.left_out[what] = self.left_out.get(what, 0) + 1


@dataclass(slots=True)
class _Attributes:
    """What a directory gets once everything is in it."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime_ns: int | None = None
    xattrs: dict[bytes, bytes] = field(default_factory=dict)


UNSAID = 0
"""The time of a layer's own folder when its archive did not say what / is like."""


def unpack(archive: Archive, root: int, ids: Ids, budget: Budget) -> Tally:
    """Fill the empty directory `root` (a descriptor); InvalidRequest names the member at fault."""
    unpacker = _Unpacker(archive, root, ids, budget)
    try:
        for entry in archive:
            unpacker.add(entry)
        unpacker.finish()
    finally:
        unpacker.close()
    return unpacker.tally


class _Unpacker:
    def __init__(self, archive: Archive, root: int, ids: Ids, budget: Budget) -> None:
        self._archive = archive
        self._root = root
        self._ids = ids
        self._budget = budget
        self._opaque = ids.xattr_prefix + b"opaque"
        self._parents: OrderedDict[bytes, int] = OrderedDict()
        self._directories: dict[bytes, _Attributes] = {b"": _Attributes(mtime_ns=UNSAID)}
        self._make: dict[Kind, Callable[[Entry, int, bytes], None]] = {
            Kind.FILE: self._file,
            Kind.HARD_LINK: self._hard_link,
            Kind.SYMLINK: self._symlink,
            Kind.FIFO: self._fifo,
        }
        self.tally = Tally()

    def add(self, entry: Entry) -> None:
        """Create one member, replacing what an earlier one left at its place."""
        self._budget.spend(entry)
        self.tally.entries += 1
        folder, name = _split(entry)
        try:
            if name.startswith(WHITEOUT):
                self._whiteout(entry, folder, name)
            elif entry.kind is Kind.DEVICE:
                self.tally.leave_out("device nodes")
            elif entry.kind is Kind.DIRECTORY:
                self._directory(entry, folder, name)
            elif not name:
                raise _refused(entry, "the root must be a directory")
            else:
                self._replace(entry, self._parent(folder), name)
        except OSError as error:
            raise _failed(entry, error) from error

    def finish(self) -> None:
        """Give directories their attributes: creating files in them changed their times."""
        for path, attributes in self._directories.items():
            try:
                descriptor = rooted.open_below(self._root, path, _DIRECTORY | os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):  # a later member took its place
                continue
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue
                raise
            try:
                self._attribute(descriptor, path, attributes)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Close what is open."""
        while self._parents:
            os.close(self._parents.popitem()[1])

    # Places

    def _parent(self, folder: bytes) -> int:
        """The directory in which a member goes; missing ones are made, as engines do."""
        found = self._parents.get(folder)
        if found is not None:
            self._parents.move_to_end(folder)
            return found
        opened = self._opened(folder) if folder else os.dup(self._root)
        self._parents[folder] = opened
        if len(self._parents) > _OPEN_PARENTS:
            os.close(self._parents.popitem(last=False)[1])
        return opened

    def _opened(self, folder: bytes) -> int:
        try:
            return rooted.open_below(self._root, folder, _DIRECTORY)
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            if not self._is_whiteout(folder):
                raise
        above, _, name = folder.rpartition(b"/")
        self._make_directory(self._parent(above), name, asked_for=False)
        self._directories[folder] = _Attributes()
        return rooted.open_below(self._root, folder, _DIRECTORY)

    def _is_whiteout(self, path: bytes) -> bool:
        above, _, name = path.rpartition(b"/")
        return _is_whiteout(os.stat(name, dir_fd=self._parent(above), follow_symlinks=False))

    def _make_directory(self, parent: int, name: bytes, *, asked_for: bool) -> None:
        """Make it unless it is there; one that takes a whiteout's place hides what is below it too.

        Only a member of its own takes the place of a file or a link; one that others imply does not.
        """
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            return
        except FileExistsError:
            pass
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return
        if not (asked_for or _is_whiteout(found)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        os.unlink(name, dir_fd=parent)
        os.mkdir(name, 0o700, dir_fd=parent)
        if _is_whiteout(found):
            self._mark_opaque(parent, name)

    def _mark_opaque(self, parent: int, name: bytes) -> None:
        descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            os.setxattr(descriptor, self._opaque, b"y")
        finally:
            os.close(descriptor)

    def _replace(self, entry: Entry, parent: int, name: bytes) -> None:
        make = self._make[entry.kind]
        try:
            make(entry, parent, name)
        except FileExistsError:
            if entry.kind is Kind.HARD_LINK and _same(entry.target, entry.name):
                return
            self._remove(parent, name)
            make(entry, parent, name)

    def _remove(self, parent: int, name: bytes) -> None:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            self._forget_parents(keep=parent)
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)

    def _forget_parents(self, keep: int) -> None:
        """Some of them are about to be removed."""
        for folder, descriptor in list(self._parents.items()):
            if descriptor != keep:
                os.close(self._parents.pop(folder))

    # Kinds of members

    def _directory(self, entry: Entry, folder: bytes, name: bytes) -> None:
        if name:
            self._make_directory(self._parent(folder), name, asked_for=True)
        path = folder + b"/" + name if folder else name
        changed = entry.mtime_ns if path or entry.mtime_ns != UNSAID else UNSAID + 1
        self._directories[path] = _Attributes(entry.mode, entry.uid, entry.gid, changed, self._kept(entry))

    def _file(self, entry: Entry, parent: int, name: bytes) -> None:
        descriptor = os.open(name, _CREATE, 0o600, dir_fd=parent)
        try:
            self._write(entry, descriptor)
            for key, value in self._kept(entry).items():
                os.setxattr(descriptor, key, value)
            os.fchown(descriptor, *self._ids.owner(entry.uid, entry.gid, entry.name))
            os.fchmod(descriptor, entry.mode)  # last: a change of owner takes setuid bits away
            os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(descriptor)

    def _write(self, entry: Entry, descriptor: int) -> None:
        self.tally.bytes += entry.size
        if entry.holes is None:
            for part in self._archive.data():
                _write_all(descriptor, part)
            return
        regions = iter(entry.holes.regions)
        left = 0
        for part in self._archive.data():
            while part:
                if not left:
                    offset, left = next(regions)
                    os.lseek(descriptor, offset, os.SEEK_SET)
                _write_all(descriptor, part[:left])
                part, left = part[left:], left - len(part[:left])
        os.ftruncate(descriptor, entry.holes.size)

    def _symlink(self, entry: Entry, parent: int, name: bytes) -> None:
        os.symlink(entry.target, name, dir_fd=parent)
        self._settle(entry, parent, name)

    def _fifo(self, entry: Entry, parent: int, name: bytes) -> None:
        os.mkfifo(name, 0o600, dir_fd=parent)
        self._settle(entry, parent, name)
        os.chmod(name, entry.mode, dir_fd=parent)

    def _settle(self, entry: Entry, parent: int, name: bytes) -> None:
        owner = self._ids.owner(entry.uid, entry.gid, entry.name)
        os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _hard_link(self, entry: Entry, parent: int, name: bytes) -> None:
        folder, target = _split_path(entry, entry.target)
        try:
            source = rooted.open_below(self._root, folder, os.O_PATH | os.O_DIRECTORY)
            try:
                os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(source)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            raise _refused(entry, f"it links to {_shown(entry.target)}, no file of this layer") from None

    def _whiteout(self, entry: Entry, folder: bytes, name: bytes) -> None:
        if name == OPAQUE:
            above, _, last = folder.rpartition(b"/")
            self._parent(folder)  # it may be named before it is made
            if folder:
                self._mark_opaque(self._parent(above), last)
            else:
                os.setxattr(self._root, self._opaque, b"y")
            return
        if name.startswith(_RESERVED):  # notes of an old storage driver to itself
            return
        hidden = name[len(WHITEOUT) :]
        if hidden in (b"", b".", b".."):
            raise _refused(entry, "it deletes nothing that has a name")
        parent = self._parent(folder)
        try:
            os.mknod(hidden, stat.S_IFCHR, 0, dir_fd=parent)
        except FileExistsError:  # it hides what lower layers have, never what this one brings
            if stat.S_ISDIR(os.stat(hidden, dir_fd=parent, follow_symlinks=False).st_mode):
                self._mark_opaque(parent, hidden)

    # Attributes

    def _kept(self, entry: Entry) -> dict[bytes, bytes]:
        if not entry.xattrs:
            return entry.xattrs
        kept = {}
        for key, value in entry.xattrs.items():
            if key.startswith(b"user.") and not key.startswith(b"user.overlay."):
                kept[key] = value
            else:
                self.tally.leave_out("file capabilities" if key == b"security.capability" else "attributes")
        return kept

    def _attribute(self, descriptor: int, path: bytes, attributes: _Attributes) -> None:
        for key, value in attributes.xattrs.items():
            os.setxattr(descriptor, key, value)
        os.fchown(descriptor, *self._ids.owner(attributes.uid, attributes.gid, path))
        # Its one owner must be able to fill it, and to delete it one day.
        own = 0o700 if self._ids.base is None else 0
        os.fchmod(descriptor, attributes.mode | own)
        if attributes.mtime_ns is not None:
            os.utime(descriptor, ns=(attributes.mtime_ns, attributes.mtime_ns))


def _split(entry: Entry) -> tuple[bytes, bytes]:
    return _split_path(entry, entry.name)


def _split_path(entry: Entry, path: bytes) -> tuple[bytes, bytes]:
    """(folder, name) without `.` and empty parts; both are empty for the root itself."""
    parts = path.split(b"/")
    if b".." in parts:
        raise _refused(entry, f"{_shown(path)} points out of the image")
    if b"" in parts or b"." in parts:
        parts = [part for part in parts if part not in (b"", b".")]
    return (b"/".join(parts[:-1]), parts[-1]) if parts else (b"", b"")


def _same(one: bytes, other: bytes) -> bool:
    return [p for p in one.split(b"/") if p not in (b"", b".")] == [
        p for p in other.split(b"/") if p not in (b"", b".")
    ]


def _is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _write_all(descriptor: int, part: memoryview) -> None:
    while part:
        part = part[os.write(descriptor, part) :]


def _shown(name: bytes) -> str:
    return repr(os.fsdecode(name)[:200])


def _refused(entry: Entry, why: str) -> InvalidRequest:
    return InvalidRequest(f"{entry.kind.value} {_shown(entry.name)}: {why}", code=Code.IMAGE_INVALID)


def _failed(entry: Entry, error: OSError) -> Exception:
    """Faults of the archive are the image's, those of the disk are ours."""
    if error.errno in _ARCHIVE_FAULTS:
        return _refused(entry, (error.strerror or "").lower())
    return OSError(error.errno, error.strerror, os.fsdecode(entry.name))
