# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"


def upgrade() -> None:
    """One table."""
    op.create_table(
        "pools",
        sa.Column("name", sa.String(253), primary_key=True),
        sa.Column("template", sa.JSON, nullable=False),
        sa.Column("capacity", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("refuses", sa.Boolean, nullable=False),
    )
