# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sandboxes as containers of a Docker Engine, on this machine or another."""
