# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One file for each change of the schema, in order."""
