# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The last step of a start from a template: a machine that stands still learns what it is, and goes on."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import replace

from casulo.model.sandbox import EXECD_PORT, Handle, Spec
from casulo.runtimes import bootchannel
from casulo.runtimes.local.roots import Root
from casulo.runtimes.microvm import clock, identity
from casulo.runtimes.microvm.folder import Folder
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.networking import Networking


class Booting:
    """Tells machines of one server what they are."""

    def __init__(self, machines: Machines, network: Networking) -> None:
        self._machines = machines
        self._network = network

    async def boot(self, folder: Folder, spec: Spec, root: Root, seconds: float) -> Handle:
        """Make a restored machine the sandbox that its folder is named after.

        `seconds` it may take, beside what the caller's own hook may.
        """
        slot, token = self._machines.slot(folder), secrets.token_urlsafe(24)
        variables = _variables(folder.name, replace(spec, env={}), root)
        folder.environment.write_text(json.dumps(variables))
        await self.police(folder.name, spec)
        resolvers = self._network.resolvers(folder)
        link = (await self._machines.lines(folder.name)).link
        order = {
            "do": "boot",
            "limits": {"pids": spec.resources.pids, "shm_bytes": spec.resources.shm_bytes},
            "document": _document(folder.name, spec, root, token).body(),
            "identity": identity.make(folder.name, token, hostname(folder.name), slot, resolvers),
        }
        link.send(order)
        await self._machines.vmm.go(folder.sockets)
        event = await link.event(bootchannel.start_limit(seconds, spec))
        bootchannel.understand(event)
        self._machines.besides(clock.keep_right(link))
        return Handle(str(slot.address), EXECD_PORT, token)

    async def police(self, name: str, spec: Spec) -> None:
        """Before it goes on: a machine under a policy is so from its first packet."""
        if spec.network_policy is not None:
            await asyncio.to_thread(self._network.police, name, spec.network_policy)


def hostname(sandbox_id: str) -> str:
    """The name that a sandbox gives itself: short enough for a prompt."""
    return f"casulo-{sandbox_id[:8]}"


def _variables(sandbox_id: str, spec: Spec, root: Root) -> dict[str, str]:
    home = root.user.home or "/root"
    return bootchannel.environment(sandbox_id, spec, image_env=root.environment, home=home)


def _document(sandbox_id: str, spec: Spec, root: Root, token: str) -> bootchannel.BootDocument:
    return bootchannel.BootDocument(
        sandbox_id=sandbox_id,
        access_token=token,
        entrypoint=spec.entrypoint or root.arguments,
        env=_variables(sandbox_id, spec, root),
        cwd=root.workdir,
        uid=root.user.uid,
        gid=root.user.gid,
        groups=root.user.groups,
        directories=root.directories,
        log_cap_bytes=0,  # the host caps what it keeps
        pre_start=spec.pre_start,
        periodic=spec.periodic,
        trusted_ca=spec.trusted_ca,
    )
