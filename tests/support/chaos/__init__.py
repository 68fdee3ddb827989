# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Operations that are cut short at a random point, and what has to be true afterwards."""
