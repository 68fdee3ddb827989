# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""HTTP at the edge: routes, wire schemas, authentication, error mapping and the server proxy."""
