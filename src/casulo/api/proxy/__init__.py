# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Forwarding of HTTP requests and WebSockets to a port of a sandbox, byte for byte."""
