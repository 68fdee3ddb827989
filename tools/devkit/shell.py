# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Running other programs, and failing with their status instead of a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class Failed(Exception):
    """A step did not succeed; `status` becomes the exit status of `./dev`."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def say(text: str) -> None:
    """Progress goes to standard error: standard output belongs to results."""
    print(f"dev: {text}", file=sys.stderr, flush=True)


@contextmanager
def beside(command: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Let `command` run meanwhile, and be interrupted where what is inside fails.

    Its output comes at the end. Failed unless it exits with 0.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            list(command), env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            yield
        except BaseException:
            process.send_signal(signal.SIGINT)  # it may have things to put away
            raise
        finally:
            process.wait()
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
        if process.returncode:
            raise Failed(f"`{' '.join(command)}` failed with status {process.returncode}")


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> None:
    """Run to the end, output on standard error when `quiet`; raise Failed unless it exits with 0."""
    sys.stdout.flush()
    done = subprocess.run(
        list(command),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=sys.stderr if quiet else None,
        check=False,
    )
    if done.returncode:
        status = done.returncode if done.returncode > 0 else 128 - done.returncode
        raise Failed(f"`{' '.join(command)}` failed with status {done.returncode}", status)
