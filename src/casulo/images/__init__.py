# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Root file systems for sandboxes, and the daemon binary that goes into them."""
