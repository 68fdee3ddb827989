# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Addresses, network namespaces, veth pairs and the packet filter on the host's side."""
