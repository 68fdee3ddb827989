# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a caller will do first, done once with a machine that has no caller yet.

An emulated machine translates each piece of its code when that runs for the first time. So its daemon is
started for a sandbox that never was, and runs commands as our clients and others ask for them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casulo.model.errors import RuntimeFailure
from casulo.model.sandbox import EXECD_PORT
from casulo.runtimes import bootchannel

_SECONDS = 30.0
_TOKEN_HEADER = "X-EXECD-ACCESS-TOKEN"
_COMMANDS: tuple[tuple[Mapping[str, Any], Mapping[str, str]], ...] = (
    ({"argv": ["true"]}, {"EXECD-STREAM-FRAMING": "raw"}),
    ({"command": "true"}, {}),
    ({"argv": ["true"]}, {"EXECD-STREAM-FRAMING": "raw"}),
)
"""Bodies and headers. The last comes when everything is there, as later ones will."""


@dataclass(frozen=True)
class Part:
    """A machine's address, and the token that is asked for during its rehearsal only."""

    address: str
    token: str

    def document(self, name: str) -> bootchannel.BootDocument:
        """A sandbox whose entrypoint ends at once."""
        variables = {"PATH": bootchannel.DEFAULT_PATH, "HOME": "/root"}
        return bootchannel.BootDocument(name, self.token, ("true",), variables, log_cap_bytes=0)

    def play(self) -> None:
        """Run the commands. RuntimeFailure when the machine does not do its part. Blocks."""
        line = http.client.HTTPConnection(self.address, EXECD_PORT, timeout=_SECONDS)
        with contextlib.closing(line):
            try:
                for body, headers in _COMMANDS:
                    self._ask(line, body, headers)
            except (OSError, http.client.HTTPException) as error:
                raise RuntimeFailure(f"a machine did not rehearse: {error!r}") from error

    def _ask(
        self, line: http.client.HTTPConnection, body: Mapping[str, Any], more: Mapping[str, str]
    ) -> None:
        headers = {"Content-Type": "application/json", _TOKEN_HEADER: self.token, **more}
        line.request("POST", "/command", json.dumps(body), headers)
        with line.getresponse() as answer:
            told = answer.read()
        if answer.status != 200:
            raise RuntimeFailure(f"a machine refused to rehearse: {told[:200]!r}")
