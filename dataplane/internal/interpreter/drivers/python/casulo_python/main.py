# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Starts the driver and serves orders until the daemon closes its end."""

import os
import sys

from casulo_python import cells, finder, output, wire


def serve():
    number = 0
    while True:
        order = wire.channel.read()
        if order is None:
            return
        if order[0] == b"run":
            number += 1
            run(order, number)


def run(order, number):
    options = dict(field.decode().partition("=")[::2] for field in order[2:])
    output.begin()
    try:
        cells.run(order[1].decode("utf-8", "replace"), number, options)
    finally:
        if wire.channel.forked:
            output.flush()
            os._exit(0)
    output.flush()
    wire.channel.tell("done")


wire.listen()
output.install()
finder.install()
cells.offer_builtins()
wire.channel.tell("ready", sys.version.split()[0])
serve()
