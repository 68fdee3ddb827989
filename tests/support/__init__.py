# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What several test suites share: real servers as processes, and what this machine can do."""
