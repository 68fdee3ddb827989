# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The sub-commands of `./dev` and their help."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from devkit import PYTHON, ROOT, build, checks, environment
from devkit.shell import Failed, beside, run, say

USAGE = """\
usage: ./dev COMMAND [ARGUMENTS]

  setup                 install what is missing on this machine, make .venv, compile the Go programs
  demo                  set up, then run examples/demo.py: a sandbox from start to end, with times
  test [ARGUMENTS]      set up, lint, Go tests, then pytest; arguments go to pytest (and skip lint and Go)
  chaos [ARGUMENTS]     kill -9 at 30 random points of every operation, on every runtime; takes half an hour
  lint [--fix]          every static check; --fix formats and repairs what can be repaired
  bench NAME [--json] [--save]   one benchmark; without NAME their list
  bench NAME --vs REV   the same on another revision and on this one
  bench --render        a page and pictures of what was saved in benchmarks/results
  build                 a wheel in dist/, proven by importing it in a clean environment
"""


SOAK = "tests/chaos/test_soak.py"
SOAK_ENVIRONMENT = {"CASULO_SOAK_SECONDS": "120", "CASULO_SOAK_CLIENTS": "2", "CASULO_SOAK_REST": "0.4"}
"""Two minutes of a load that leaves most of the processors to the tests beside it."""


def setup(arguments: Sequence[str]) -> None:
    environment.set_up()
    say("set up: .venv is ready, `.venv/bin/osb --help` shows the command line")


def demo(arguments: Sequence[str]) -> None:
    environment.set_up()
    become([str(PYTHON), str(ROOT / "examples" / "demo.py"), *arguments])


def test(arguments: Sequence[str]) -> None:
    """All of it, or only the pytest run that the arguments describe."""
    environment.set_up()
    pytest = [str(PYTHON), "-m", "pytest"]
    if arguments:
        run([*pytest, *arguments])
        return
    checks.lint()
    with beside([*pytest, SOAK], SOAK_ENVIRONMENT):
        checks.go_tests()
        # Most tests wait for something: two processes for two cores take little more than half the time.
        workers = ["--numprocesses", "2", "--reruns", "1", "--reruns-delay", "2"]
        run([*pytest, *workers, "--deselect", SOAK])


def chaos(arguments: Sequence[str]) -> None:
    environment.set_up()
    os.environ.setdefault("CASULO_CHAOS_ROUNDS", "30")
    os.environ.setdefault("CASULO_CHAOS_KILLS", "30")
    run([str(PYTHON), "-m", "pytest", "-s", "tests/chaos", *arguments])


def lint(arguments: Sequence[str]) -> None:
    environment.set_up()
    checks.lint(fix="--fix" in arguments)


def bench(arguments: Sequence[str]) -> None:
    environment.set_up()
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / place) for place in (".", "tests", "tools"))
    become([str(PYTHON), "-m", "benchmarks", *arguments])


def make_wheel(arguments: Sequence[str]) -> None:
    environment.set_up()
    build.wheel()


def become(command: list[str]) -> None:
    """Replace this process, so that signals and the terminal are the program's own."""
    sys.stdout.flush()
    os.execv(command[0], command)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "setup": setup,
    "demo": demo,
    "test": test,
    "chaos": chaos,
    "lint": lint,
    "bench": bench,
    "build": make_wheel,
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        asked_for_help = arguments[:1] in (["help"], ["-h"], ["--help"])
        print(USAGE, file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    os.chdir(ROOT)
    try:
        COMMANDS[arguments[0]](arguments[1:])
    except Failed as error:
        print(f"dev {arguments[0]}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    return 0


sys.exit(main(sys.argv[1:]))
