# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A small internet of our own: a network namespace with name servers, web servers and others in it."""
