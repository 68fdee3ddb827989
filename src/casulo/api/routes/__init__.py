# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The routes of the lifecycle API, one module per subject."""
