# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Measurements that SPEC.md quotes. Each benchmark is one module with a `measure` function."""
