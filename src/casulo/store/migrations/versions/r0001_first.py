# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The first schema: sandboxes with their labels, idempotency keys, tombstones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    _sandboxes()
    _labels()
    _claims()
    _tombstones()


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("runtime", sa.String(32), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("handle", sa.JSON),
        sa.Column("exit", sa.JSON),
    )
    op.create_index("ix_sandboxes_newest", "sandboxes", ["created_at", "id"])
    op.create_index("ix_sandboxes_expires_at", "sandboxes", ["expires_at"])


def _labels() -> None:
    op.create_table(
        "sandbox_labels",
        sa.Column(
            "sandbox_id",
            sa.String(64),
            sa.ForeignKey("sandboxes.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("key", sa.String(320), primary_key=True),
        sa.Column("value", sa.String(63), nullable=False),
    )
    op.create_index("ix_sandbox_labels_pair", "sandbox_labels", ["key", "value"])


def _claims() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_idempotency_keys_sandbox", "idempotency_keys", ["sandbox_id"])


def _tombstones() -> None:
    op.create_table(
        "tombstones",
        sa.Column("sandbox_id", sa.String(64), primary_key=True),
        sa.Column("deleted_at", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("exit", sa.JSON),
    )
    op.create_index("ix_tombstones_deleted_at", "tombstones", ["deleted_at"])
