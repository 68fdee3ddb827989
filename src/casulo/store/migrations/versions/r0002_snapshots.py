# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    """One table."""
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("sandbox_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("runtime", sa.String(32), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
    )
    op.create_index("ix_snapshots_newest", "snapshots", ["created_at", "id"])
    op.create_index("ix_snapshots_sandbox", "snapshots", ["sandbox_id"])
