# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Casulo: a self-hosted sandbox platform for AI agents."""

__version__ = "0.1.0"
