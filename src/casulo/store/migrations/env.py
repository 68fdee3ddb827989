# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Alembic's entry into the migrations; it runs on the connection that `upgrade` hands over."""

from __future__ import annotations

from alembic import context

from casulo.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
