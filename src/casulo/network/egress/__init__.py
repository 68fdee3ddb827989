# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The process that enforces network policies: settings, configuration, life, and how to talk to it."""
