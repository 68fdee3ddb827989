# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a volume may be called, where it may be mounted, and what a runtime must declare for it."""

from __future__ import annotations

import pytest

from casulo.model import volumes
from casulo.model.draft import Defaults, Draft, complete
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.secret import Secret
from casulo.model.volume import Bucket, Claim, HostPath, KeyedBucket, Volume

ALL = ("volumes.host", "volumes.named")


def _host(name: str = "v", mount: str = "/mnt/v", path: str = "/srv/data", sub: str = "") -> Volume:
    return Volume(name, mount, HostPath(path), sub_path=sub)


def _claim(claim: Claim) -> Volume:
    return Volume("v", "/mnt/v", claim)


@pytest.mark.parametrize("name", ["a", "0", "a-b", "x" * 63])
def test_good_names(name: str) -> None:
    volumes.check([_host(name)], ALL)


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a_b", "a.b", "x" * 64, "a\n", "ä"])
def test_bad_names(name: str) -> None:
    _refused(_host(name), Code.VOLUME_INVALID_NAME)


@pytest.mark.parametrize(
    "path", ["/a", "/mnt/data", "/etc/ssl", "/processes", "/home/.x", "/opt/open", "/..a"]
)
def test_good_mount_paths(path: str) -> None:
    volumes.check([_host(mount=path)], ALL)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "mnt",
        "/",
        "/a/",
        "//a",
        "/a//b",
        "/a/../b",
        "/a/.",
        "/a\0b",
        "/\ud800",
        "/" + "x" * 256,
        "/x" * 2100,
        "/proc",
        "/proc/sys/kernel",
        "/sys/fs",
        "/dev",
        "/dev/shm/x",
        "/opt",
        "/opt/opensandbox",
        "/opt/opensandbox/execd",
        "C:\\data",
    ],
)
def test_bad_mount_paths(path: str) -> None:
    _refused(_host(mount=path), Code.VOLUME_INVALID_MOUNT_PATH)


@pytest.mark.parametrize("path", ["a", "a/b", ".hidden", "..a", "a b"])
def test_good_sub_paths(path: str) -> None:
    volumes.check([_host(sub=path)], ALL)


@pytest.mark.parametrize("path", ["..", "../x", "a/../b", "/a", "a/", "./a", "a//b", "a\0", "x" * 256])
def test_bad_sub_paths(path: str) -> None:
    _refused(_host(sub=path), Code.VOLUME_INVALID_SUB_PATH)


@pytest.mark.parametrize("path", ["", "srv", "/srv/", "/srv/../etc", "/srv//x", "D:\\x", "/a\0"])
def test_bad_host_paths(path: str) -> None:
    _refused(_host(path=path), Code.VOLUME_INVALID_HOST_PATH)


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "-x", "a/b", "a b", "x" * 254, "a\0"])
def test_bad_claim_names(name: str) -> None:
    _refused(_claim(Claim(name)), Code.VOLUME_INVALID_CLAIM_NAME)


def test_good_claims() -> None:
    for name in ("a", "A_b.c-d", "x" * 253):
        volumes.check([_claim(Claim(name, access_modes=("ReadWriteMany",)))], ALL)


def test_two_of_a_kind() -> None:
    _refused(_host("a"), Code.VOLUME_DUPLICATE_NAME, _host("a", "/mnt/b"))
    _refused(_host("a"), Code.VOLUME_INVALID_MOUNT_PATH, _host("b"))
    volumes.check([_host("a", "/mnt"), _host("b", "/mnt/b")], ALL)


@pytest.mark.parametrize(
    "claim",
    [
        Claim("c", size="1Gi"),
        Claim("c", storage_class="fast"),
        Claim("c", access_modes=("ReadWriteOncePod",)),
    ],
)
def test_b087_what_cannot_be_held_is_refused(claim: Claim) -> None:
    with pytest.raises(Unsupported) as caught:
        volumes.check([_claim(claim)], ALL)
    assert caught.value.code == Code.VOLUME_UNSUPPORTED
    volumes.check([_claim(claim)], (*ALL, "volumes.size", "volumes.class", "volumes.exclusive"))


@pytest.mark.parametrize("claim", [Claim("c", size="much"), Claim("c", access_modes=("Sometimes",))])
def test_wishes_that_are_none(claim: Claim) -> None:
    _refused(_claim(claim), Code.VOLUME_INVALID_BACKEND)


def test_undeclared_features_are_refused_with_the_reason() -> None:
    draft = Draft("host", volumes=(_host(),))
    with pytest.raises(Unsupported, match="because the moon is full"):
        complete(draft, Defaults(), missing={"volumes.host": "because the moon is full"})
    assert complete(draft, Defaults(), features=ALL).volumes == draft.volumes


def test_names_are_the_owners() -> None:
    mine = volumes.owned([_claim(Claim("c")), _host("h")], "me")
    assert mine == (_claim(Claim("c", owner="me")), _host("h"))


def _refused(volume: Volume, code: str, *more: Volume) -> None:
    with pytest.raises(InvalidRequest) as caught:
        volumes.check([volume, *more], ALL)
    assert caught.value.code == code


@pytest.mark.parametrize("bucket", ["ab", "-abc", "a/b", "abc:/x", "Abc", "-oallow_other", "x" * 64])
def test_bad_buckets(bucket: str) -> None:
    _refused_bucket(Bucket(bucket, "oss.example.com"), Code.VOLUME_INVALID_BUCKET)


@pytest.mark.parametrize(
    "endpoint",
    ["", "host", "127.0.0.1", "http://10.0.0.1:80", "http://[::1]", "a.b,uid=0", "file://a.b", "a.b/c"],
)
def test_bad_endpoints(endpoint: str) -> None:
    _refused_bucket(Bucket("abc", endpoint), Code.VOLUME_INVALID_BUCKET_ENDPOINT)


@pytest.mark.parametrize(
    "option",
    ["passwd_file=/x", "url=1", "uid=0", "dev", "umask=0,dev", "umask=0\n", "-d", "umask=", "use_cache=1"],
)
def test_bad_options(option: str) -> None:
    _refused_bucket(Bucket("abc", "oss.example.com", (option,)), Code.VOLUME_INVALID_BUCKET_OPTION)


@pytest.mark.parametrize("key", ["id:", ":secret", "id:a:b", "id:a\nother:id:b", "id: a", "id:" + "x" * 257])
def test_bad_keys_are_not_shown(key: str) -> None:
    bucket = KeyedBucket("abc", "https://oss.example.com:443", ("umask=022", "noxattr"), Secret(key))
    error = _refused_bucket(bucket, Code.VOLUME_INVALID_BUCKET_KEY)
    assert key not in str(error)


def test_buckets_only_where_declared() -> None:
    volume = Volume("v", "/mnt/v", Bucket("abc", "oss.example.com"))
    volumes.check([volume], ["volumes.ossfs"])
    with pytest.raises(Unsupported) as caught:
        volumes.check([volume], ALL)
    assert caught.value.code == Code.VOLUME_UNSUPPORTED
    assert "host volume" in caught.value.hint


def _refused_bucket(bucket: Bucket, code: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        volumes.check([Volume("v", "/mnt/v", bucket)], ["volumes.ossfs"])
    assert caught.value.code == code
    return caught.value
