// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package files owns everything that callers do with the files of a sandbox: uploads and downloads, information,
// listing, searching, editing, moving, permissions and deletion, watches, and archives of whole trees. All of it also
// works with the credentials of a given user, below /v1/filesystem/{uid}/{gid}.
//
// What a caller can rely on:
//
//   - An upload is answered with success only when every file of it is on the disk under its name. Each is written
//     beside its target as ".casulo-part-…", flushed, given its mode and owner, and renamed over the target. Whatever
//     goes wrong before that leaves the old files as they were; what a killed daemon leaves is deleted at its next
//     start, with the help of a journal (journal.go). Only files that cannot be renamed over, because they are mount
//     points such as /etc/hosts or lie in a directory closed to the user, are rewritten in place, from a complete copy.
//     Mode and owner that the caller does not name stay those of the replaced file.
//   - An upload onto a link replaces the link and leaves its target alone; onto a directory, a link to one, or a
//     special file it is a conflict. Deleting, moving and describing concern the link itself. Downloading, editing in
//     place and changing permissions follow it, since they need something that exists. A link given as the root of a
//     listing is refused, as the root of a search it is reported as what it is. Links above the last element of a path
//     are always followed.
//   - Deleting and copying trees never follows links and works on open directories, so that exchanging a directory for
//     a link meanwhile leads nowhere. Mount points are not deleted and not entered by a deletion.
//   - Archives are extracted strictly below their directory; names and links that would lead out are refused.
//   - Names that are not UTF-8 are spelled with private-use characters (names.go); all calls take that spelling.
//   - A path in a request is taken as it is written when it exists that way or names an unset variable; otherwise "~",
//     $NAME and ${NAME} are expanded.
//   - A stream that cannot be completed ends in a broken connection, never in a regular end.
//
// Errors have the codes of package api and three of our own: FILE_CONFLICT (409), PERMISSION_DENIED (403) and
// NO_SPACE (507).
package files
