# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sandboxes as virtual machines, each with a kernel of its own."""
