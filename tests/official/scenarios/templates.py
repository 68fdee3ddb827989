# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Templates with the official SDK."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from opensandbox import Sandbox
from opensandbox.models.templates import CreateTemplateRequest, TemplateFilter, TemplateReadiness

from scenarios.context import Context


async def template_built_used_and_deleted(context: Context) -> None:
    readiness = TemplateReadiness(probe="cmd://echo warm > ~/warm", warmup_seconds=30)
    wanted = CreateTemplateRequest(
        image=context.image,
        publish="s3://bucket/publish",
        env={"WHO": "template"},
        metadata={"kind": "official"},
        readiness=readiness,
    )
    async with context.manager() as manager:
        made = await manager.create_template(wanted)
        deadline = time.monotonic() + 60
        while (found := await manager.get_template(made.template_id)).status.phase != "Succeeded":
            assert found.status.phase in ("Pending", "Building") and time.monotonic() < deadline, found
            await asyncio.sleep(0.1)
        listed = await manager.list_templates(TemplateFilter(metadata={"kind": "official"}))
        assert listed.pagination.total_items == 1
        box = await Sandbox.create_from_template(
            made.template_id, timeout=timedelta(minutes=5), connection_config=context.config()
        )
        try:
            said = await box.commands.run("cat ~/warm; echo $WHO")
            assert [message.text for message in said.logs.stdout] == ["warm", "template"]
        finally:
            await box.destroy()
        await manager.delete_template(made.template_id)
