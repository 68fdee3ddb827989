# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb audit verify`, on logs that are whole and that are not."""

from __future__ import annotations

import json
from pathlib import Path

from casulo.api import audit

from .conftest import Osb


def test_verify(lone_osb: Osb, tmp_path: Path) -> None:
    place = tmp_path / "casulo" / audit.FILE
    assert b"no audit log" in lone_osb.run("audit", "verify").stderr
    place.parent.mkdir(exist_ok=True)
    log = audit.AuditLog(place)
    log.write({"path": "/a"})
    log.write({"path": "/b"})
    log.close()
    told = json.loads(lone_osb.text("audit", "verify", "-o", "json"))
    assert told["records"] == 2 and len(told["last_hash"]) == 64
    place.write_text(place.read_text().replace("/a", "/x"))
    spoiled = lone_osb.run("audit", "verify", str(place))
    assert spoiled.returncode == 1 and b"line 1: was changed" in spoiled.stdout
