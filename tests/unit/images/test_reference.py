# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Names of images: one canonical spelling for each, and a reason for each refusal."""

from __future__ import annotations

import pytest

from casulo.images import reference
from casulo.model.errors import InvalidRequest

D = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "canonical", "familiar"),
    [
        ("python", "docker.io/library/python:latest", "python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim", "python:3.12-slim"),
        ("docker://python", "docker.io/library/python:latest", "python:latest"),
        ("docker.io/python", "docker.io/library/python:latest", "python:latest"),
        ("index.docker.io/a/b", "docker.io/a/b:latest", "a/b:latest"),
        ("team/app:v1", "docker.io/team/app:v1", "team/app:v1"),
        ("localhost/x", "localhost/x:latest", "localhost/x:latest"),
        ("registry.example:5000/a/b/c:1", "registry.example:5000/a/b/c:1", "registry.example:5000/a/b/c:1"),
        ("[::1]:5000/a:1", "[::1]:5000/a:1", "[::1]:5000/a:1"),
        (f"python@{D}", f"docker.io/library/python@{D}", f"python@{D}"),
        (f"python:3@{D}", f"docker.io/library/python@{D}", f"python@{D}"),
        ("oci:/a/b", "oci:/a/b", "oci:/a/b"),
        ("oci:/a/b:tag", "oci:/a/b:tag", "oci:/a/b:tag"),
        ("docker-archive:/a.tar", "docker-archive:/a.tar", "docker-archive:/a.tar"),
        ("docker-archive:/a.tar:app:1", "docker-archive:/a.tar:app:1", "docker-archive:/a.tar:app:1"),
        ("docker-daemon:x/y:1", "docker-daemon:docker.io/x/y:1", "docker-daemon:docker.io/x/y:1"),
    ],
)  # fmt: skip
def test_every_spelling_has_one_meaning(text: str, canonical: str, familiar: str) -> None:
    found = reference.parse(text)
    assert (found.canonical, found.familiar) == (canonical, familiar)
    assert reference.parse(found.canonical) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Python", "lower case"),
        ("a//b", "no image name"),
        ("", "no image name"),
        ("a:", "tag after the colon"),
        ("a:b c", "no tag"),
        (f"a:{'t' * 129}", "no tag"),
        ("a@sha256:123", "64 hexadecimal"),
        ("a@md5:d41d8cd98f00b204e9800998ecf8427e", "64 hexadecimal"),
        ("-x.example/a", "no host name"),
        ("registry.example:port/a", "no host name"),
        ("registry.example:99999/a", "99999 is no port"),
        ("a/" * 130 + "a", "longer than"),
        ("oci:relative", "absolute path"),
        ("docker-archive:x.tar", "absolute path"),
        ("--help", "no image name"),
        ("a\n", "no image name"),
    ],
)
def test_a_wrong_name_is_explained(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        reference.parse(text)


def test_only_registries_are_asked_over_the_network() -> None:
    assert reference.parse("python").registry == "docker.io"
    assert reference.parse("registry.example:5000/a").registry == "registry.example:5000"
    for text in ("oci:/a", "docker-archive:/a", "docker-daemon:a"):
        assert reference.parse(text).registry == "" and reference.parse(text).is_local
