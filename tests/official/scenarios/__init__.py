# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Uses of the official clients, one function each; every one starts and removes its own sandboxes."""
