# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pure types and rules of the domain. Nothing in this package does I/O."""
