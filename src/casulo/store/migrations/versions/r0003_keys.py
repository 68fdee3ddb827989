# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""API keys, whose each sandbox and snapshot is, and what a sandbox holds in columns that can be added up."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"


def upgrade() -> None:
    """What is there already belongs to the server's own key."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False, unique=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("limits", sa.JSON, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("rotated_at", sa.BigInteger),
    )
    op.add_column("sandboxes", sa.Column("owner", sa.String(64), nullable=False, server_default=""))
    for name in ("cpu_millis", "memory_bytes", "disk_bytes"):
        op.add_column("sandboxes", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("snapshots", sa.Column("owner", sa.String(64), nullable=False, server_default=""))
    op.create_index("ix_sandboxes_owner", "sandboxes", ["owner"])
    _fill()


_HELD = "UPDATE sandboxes SET cpu_millis=:cpu, memory_bytes=:memory, disk_bytes=:disk WHERE id=:id"


def _fill() -> None:
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT id, spec FROM sandboxes")).all()
    for sandbox_id, spec in rows:
        held: dict[str, Any] = (json.loads(spec) if isinstance(spec, str) else spec)["resources"]
        connection.execute(
            sa.text(_HELD),
            {
                "id": sandbox_id,
                "cpu": held["cpu_millis"],
                "memory": held["memory_bytes"],
                "disk": held.get("disk_bytes") or 0,
            },
        )
