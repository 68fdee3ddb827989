# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The Python driver of the daemon: runs cells as it is told to, and keeps what they leave behind.

The daemon hands this package over as an archive in memory and starts it with the image's own Python, 3.8 or
newer, so it needs nothing but the standard library and writes nothing to disk. Starting must be quick and
small: modules are imported when first needed, and cheap C modules are preferred over their friendly faces.
"""
