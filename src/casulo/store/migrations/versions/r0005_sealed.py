# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is kept encrypted: vaults, and the keys of sandboxes' certificate authorities."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    """One table."""
    op.create_table(
        "sealed",
        sa.Column("holder", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
