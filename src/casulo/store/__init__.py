# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Persistence of what the server promised: sandboxes, idempotency keys, tombstones."""
