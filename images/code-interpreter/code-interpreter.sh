#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
#
# The entrypoint that clients of the code interpreter know. Nothing has to be started: contexts begin when code comes.
exec sleep infinity
