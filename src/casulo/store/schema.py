# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The tables, in types that SQLite and PostgreSQL both have.

Times are whole microseconds since 1970 UTC, so that comparing and sorting need no date functions.
`sandbox_labels` repeats `sandboxes.metadata` in a form that an index can serve, and three columns of
`sandboxes` repeat numbers of its spec in a form that can be added up; each is written in one
transaction with what it repeats.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

sandboxes = sa.Table(
    "sandboxes",
    metadata,
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
    sa.Column("handle", sa.JSON(none_as_null=True)),
    sa.Column("exit", sa.JSON(none_as_null=True)),
    sa.Column("owner", sa.String(64), nullable=False, server_default=""),
    sa.Column("cpu_millis", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("memory_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("disk_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("server", sa.String(64), nullable=False, server_default=""),
    sa.Index("ix_sandboxes_newest", "created_at", "id"),
    sa.Index("ix_sandboxes_expires_at", "expires_at"),
    sa.Index("ix_sandboxes_owner", "owner"),
)

labels = sa.Table(
    "sandbox_labels",
    metadata,
    sa.Column(
        "sandbox_id",
        sa.String(64),
        sa.ForeignKey("sandboxes.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("key", sa.String(320), primary_key=True),
    sa.Column("value", sa.String(63), nullable=False),
    sa.Index("ix_sandbox_labels_pair", "key", "value"),
)

claims = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("request_hash", sa.String(64), nullable=False),
    sa.Column("sandbox_id", sa.String(64), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Index("ix_idempotency_keys_sandbox", "sandbox_id"),
)

tombstones = sa.Table(
    "tombstones",
    metadata,
    sa.Column("sandbox_id", sa.String(64), primary_key=True),
    sa.Column("deleted_at", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("exit", sa.JSON(none_as_null=True)),
    sa.Index("ix_tombstones_deleted_at", "deleted_at"),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
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
    sa.Column("owner", sa.String(64), nullable=False, server_default=""),
    sa.Column("server", sa.String(64), nullable=False, server_default=""),
    sa.Index("ix_snapshots_newest", "created_at", "id"),
    sa.Index("ix_snapshots_sandbox", "sandbox_id"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(63), nullable=False, unique=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("limits", sa.JSON, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("rotated_at", sa.BigInteger),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", sa.String(253), primary_key=True),
    sa.Column("template", sa.JSON, nullable=False),
    sa.Column("capacity", sa.JSON, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("refuses", sa.Boolean, nullable=False),
)

sealed = sa.Table(
    "sealed",
    metadata,
    sa.Column("holder", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("key_id", sa.String(16), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

servers = sa.Table(
    "servers",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("url", sa.String(255), nullable=False),
    sa.Column("holder", sa.String(64), nullable=False),
    sa.Column("lease_until", sa.BigInteger, nullable=False),
)

outbox = sa.Table(
    "webhook_outbox",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("receiver", sa.String(64), nullable=False),
    sa.Column("server", sa.String(64), nullable=False),
    sa.Column("serial", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("ix_webhook_outbox_order", "server", "receiver", "serial"),
)
