# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The process that fetches and unpacks: `python -m casulo.images.worker`.

It reads one job, a line of JSON, from standard input, so that nothing secret is an argument, and
writes lines of JSON: progress, then the digest or the error. Unpacking here keeps the server's
event loop free, and ends at once, with everything it started, when its input closes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from casulo.images import ids, importing, reference
from casulo.images.config import ImageConfig
from casulo.images.pull import Pull, Wanted
from casulo.images.report import Report
from casulo.images.shelf import Shelf
from casulo.images.skopeo import Access, Skopeo
from casulo.images.sources import Layout, Source
from casulo.model import errors
from casulo.model.errors import CasuloError, Code, RuntimeFailure
from casulo.model.sandbox import Platform


def main() -> int:
    """Do the one job. The answer is on standard output either way."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_caller, daemon=True).start()
    os.umask(0o077)
    try:
        _say("done", _run(job))
    except CasuloError as error:
        _fail(error)
    except OSError as error:
        _fail(_disk_failure(error))
    return 0


def _run(job: dict[str, Any]) -> str:
    shelf = Shelf(Path(job["root"]))
    report = Report(lambda progress: _say("progress", asdict(progress)))
    with shelf.job() as place:
        if job["do"] == "pull":
            return _pull(shelf, place, job, report)
        if job["do"] == "derive":
            return importing.derive(shelf, place, job["digest"], ids.parse(job["ids"]), report)
        return importing.run(shelf, place, _import(job), report)


def _pull(shelf: Shelf, place: Path, job: dict[str, Any], report: Report) -> str:
    name = reference.parse(job["name"])
    wanted = Wanted(name, Platform(*job["platform"]), ids.parse(job["ids"]), job["limit"], job["parallel"])
    if name.transport == reference.OCI:
        source: Source = Layout(name)
    else:
        source = Skopeo(name, Access(**job["access"]), place)
    try:
        return Pull(shelf, place, source, wanted, report).run()
    finally:
        source.close()


def _import(job: dict[str, Any]) -> importing.Job:
    return importing.Job(
        source=job["source"],
        name=reference.parse(job["name"]),
        config=ImageConfig.parse(job["config"]),
        platform=Platform(*job["platform"]),
        ids=ids.parse(job["ids"]),
        limit_bytes=job["limit"],
        base=job.get("base", ""),
        tree_ids=ids.parse(job["tree_ids"]),
    )


def _end_with_caller() -> None:
    """Whoever wanted this is gone or wants it no longer when our standard input ends."""
    os.read(0, 1)
    _end()


def _fail(error: CasuloError) -> None:
    """Say so, and do not wait for other layers that are on their way for nothing."""
    _say("failed", _as_json(error))
    _end()


def _end() -> None:
    """Go at once, with every process that was started here."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _say(event: str, value: Any) -> None:
    os.write(1, json.dumps({event: value}).encode() + b"\n")  # in one piece, from whichever thread


def _as_json(error: CasuloError) -> dict[str, str]:
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return {"kind": kind.__name__, "code": error.code, "message": error.message, "hint": error.hint}


def _disk_failure(error: OSError) -> RuntimeFailure:
    return RuntimeFailure(
        f"the image could not be kept: {error.filename or ''} {error.strerror or error}".strip(),
        code=Code.IMAGE_PULL_FAILED,
        hint="the disk may be full: `osb image prune` removes what nothing uses",
    )


if __name__ == "__main__":
    sys.exit(main())
