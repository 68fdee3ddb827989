# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The command line `osb`, built on `casulo.client`."""
