# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Manifests, lists of manifests and configurations: read strictly, platform chosen. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casulo.images.config import ImageConfig
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import Platform

LARGEST = 8 << 20
"""Bytes of a manifest or configuration that are read at most."""

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
_DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Descriptor:
    """A blob by content; `platform` only in lists of manifests."""

    digest: str
    size: int
    media_type: str = ""
    platform: str = ""


@dataclass(frozen=True)
class Index:
    """A list of manifests, one for each platform."""

    manifests: tuple[Descriptor, ...]


@dataclass(frozen=True)
class Manifest:
    """One image: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True)
class Configuration:
    """The parts of an image configuration that matter here."""

    platform: str
    diff_ids: tuple[str, ...]
    config: ImageConfig
    created: str


def digest_of(raw: bytes) -> str:
    """Content address of some bytes."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def parse(raw: bytes) -> Index | Manifest:
    """InvalidRequest when it is neither; Unsupported for forms that are none of ours."""
    body = _json(raw, "manifest")
    if body.get("schemaVersion") != 2:
        raise _unsupported("its manifest is of the first schema, which is obsolete")
    if isinstance(body.get("manifests"), list):
        return Index(tuple(_descriptor(item) for item in body["manifests"]))
    if not isinstance(body.get("layers"), list):
        raise _wrong("its manifest has no layers")
    config = _descriptor(body.get("config"))
    if config.media_type not in ("", OCI_CONFIG, _DOCKER_CONFIG):
        raise _unsupported(f"it is an artifact ({config.media_type}) and no image")
    layers = tuple(_layer(item) for item in body["layers"])
    return Manifest(config, layers)


def parse_configuration(raw: bytes, manifest: Manifest) -> Configuration:
    """The configuration that belongs to `manifest`."""
    body = _json(raw, "configuration")
    rootfs = body.get("rootfs")
    ids = rootfs.get("diff_ids") if isinstance(rootfs, Mapping) else None
    diff_ids = tuple(ids) if isinstance(ids, list) else ()
    if not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in diff_ids):
        raise _wrong("its configuration has a wrong list of layers")
    if len(diff_ids) != len(manifest.layers):
        raise _wrong(f"{len(manifest.layers)} layers in the manifest, {len(diff_ids)} in the configuration")
    inner = body.get("config") or {}
    if not isinstance(inner, Mapping):
        raise _wrong("its configuration is no object")
    created = body.get("created")
    return Configuration(
        platform=_platform(body),
        diff_ids=diff_ids,
        config=ImageConfig.parse(inner),
        created=created if isinstance(created, str) else "",
    )


def choose(index: Index, wanted: Platform, name: str) -> Descriptor:
    """The manifest for `wanted`; Unsupported names what there is instead."""
    text = f"{wanted.os}/{wanted.arch}"
    matching = [m for m in index.manifests if matches(m.platform, wanted)]
    if not matching and len(index.manifests) == 1 and not index.manifests[0].platform:
        return index.manifests[0]  # a layout with one image need not say for what; its configuration does
    if not matching:
        known = sorted({m.platform for m in index.manifests if m.platform and "unknown" not in m.platform})
        raise wrong_platform(name, known, text)
    # Without a variant it runs everywhere; amd64/v3 does not.
    return min(matching, key=lambda m: m.platform != text)


def matches(platform: str, wanted: Platform) -> bool:
    """Whether an image for `platform` is one for `wanted`, whatever the variant."""
    return platform.split("/")[:2] == [wanted.os, wanted.arch]


def wrong_platform(name: str, offered: Iterable[str], wanted: str) -> Unsupported:
    """The refusal that names both sides."""
    return Unsupported(
        f"image {name} is for {', '.join(offered) or 'no platform'}, and {wanted} is needed",
        code=Code.IMAGE_UNSUPPORTED,
        hint=f"take an image that is built for {wanted}",
    )


def composed(
    config: ImageConfig, platform: Platform, layers: Sequence[tuple[str, int]]
) -> tuple[bytes, bytes]:
    """(manifest, configuration) of an image made here, from (diff id, bytes) of its layers."""
    configuration = {
        "architecture": platform.arch,
        "os": platform.os,
        "config": config.as_json(),
        "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in layers]},
    }
    raw = json.dumps(configuration, sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": digest_of(raw), "size": len(raw)},
        "layers": [{"mediaType": OCI_LAYER, "digest": d, "size": size} for d, size in layers],
    }
    return json.dumps(manifest, sort_keys=True).encode(), raw


def _platform(body: Mapping[str, Any]) -> str:
    parts = [body.get("os"), body.get("architecture"), body.get("variant")]
    return "/".join(part for part in parts if isinstance(part, str) and part)


def _layer(body: Any) -> Descriptor:
    layer = _descriptor(body)
    if body.get("urls") or "foreign" in layer.media_type or "nondistributable" in layer.media_type:
        raise _unsupported("one of its layers is kept outside the registry")
    if layer.media_type.endswith("+encrypted"):
        raise _unsupported("one of its layers is encrypted")
    return layer


def _descriptor(body: Any) -> Descriptor:
    if not isinstance(body, Mapping):
        raise _wrong("a descriptor in its manifest is no object")
    digest, size = body.get("digest"), body.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _wrong(f"its manifest names a blob {digest!r}, which is no SHA-256 digest")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise _wrong(f"its manifest gives a wrong size for {digest}")
    platform = body.get("platform")
    return Descriptor(
        digest,
        size,
        str(body.get("mediaType") or ""),
        _platform(platform) if isinstance(platform, Mapping) else "",
    )


def _json(raw: bytes, what: str) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        raise _wrong(f"its {what} is no JSON") from None
    except RecursionError:
        raise _wrong(f"its {what} is nested too deeply") from None
    if not isinstance(body, dict):
        raise _wrong(f"its {what} is no JSON object")
    return body


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(f"the image is damaged: {why}", code=Code.IMAGE_INVALID)


def _unsupported(why: str) -> Unsupported:
    return Unsupported(f"the image cannot be used: {why}", code=Code.IMAGE_UNSUPPORTED)
