# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The embedded runtime: OCI containers on this machine, without any daemon."""
