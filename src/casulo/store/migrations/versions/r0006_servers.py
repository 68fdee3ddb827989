# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Several servers over one store, and webhooks that outlive the server that owes them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0006"
down_revision = "r0005"


def upgrade() -> None:
    """Whose machine a sandbox or snapshot is on, who the servers are, what they owe."""
    for table in ("sandboxes", "snapshots"):
        op.add_column(table, sa.Column("server", sa.String(64), nullable=False, server_default=""))
    op.create_table(
        "servers",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("url", sa.String(255), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("lease_until", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "webhook_outbox",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("receiver", sa.String(64), nullable=False),
        sa.Column("server", sa.String(64), nullable=False),
        sa.Column("serial", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_webhook_outbox_order", "webhook_outbox", ["server", "receiver", "serial"])
