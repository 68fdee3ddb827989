# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The lifecycle service: intent in the store, reality in the runtimes, and what brings them together."""
