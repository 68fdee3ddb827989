# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where errors leave the program: one line on stderr with the remedy, and an exit code."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from casulo.cli.arguments import Format
from casulo.cli.printer import note
from casulo.cli.state import State
from casulo.model.errors import CasuloError

FAILED = 1
INTERRUPTED = 130
NO_READER = 141


class Edge(TyperGroup):
    """The main command, whose errors are shown instead of traced."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except CasuloError as error:
            _show(error, State.last(ctx))
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output is gone. Python would complain once more when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(NO_READER) from None
        except OSError as error:  # of this machine: the network's are CasuloErrors
            note(f"osb: {error}")
            raise typer.Exit(FAILED) from None


def _show(error: CasuloError, state: State) -> None:
    if state.verbose:
        import traceback

        traceback.print_exception(error)
    if state.output is Format.JSON:
        body = {"code": error.code, "message": error.message, "hint": error.hint}
        note(json.dumps(body, ensure_ascii=False))
        return
    note(f"osb: {error.message}")
    if error.hint:
        note(f"     {error.hint}")
    if state.verbose:
        for line in getattr(error, "__notes__", []):
            note(f"     {line}")
