# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Ways to run a sandbox. `base` holds the protocol that every runtime keeps."""
