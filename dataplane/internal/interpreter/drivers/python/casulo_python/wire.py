# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Frames to and from the daemon, as its frames.go describes them, and interrupts that cut none in two."""

import _signal
import _thread
import fcntl
import os
import struct

ORDERS, ANSWERS, TEXT = 3, 4, 5
OUT_OF_THE_WAY = 200
PATIENT = "backslashreplace"
PIECE = 1 << 20


class Interrupts:
    """SIGINT stops the running cell, outside of a cell nothing, and never the driver's own work."""

    def __init__(self):
        self.running = False
        self.held = 0
        self.missed = False

    def handle(self, number, stack):
        if not self.running:
            return
        if self.held:
            self.missed = True
        else:
            raise KeyboardInterrupt

    def hold(self):
        self.held += 1

    def let(self):
        self.held -= 1
        if self.missed and not self.held:
            self.missed = False
            raise KeyboardInterrupt

    def begin(self):
        self.held, self.missed, self.running = 0, False, True
        self.listen()

    def listen(self):
        """Before each cell, too: what an earlier one wanted with the signal was for itself."""
        _signal.signal(_signal.SIGINT, self.handle)

    def end(self):
        self.running = False


class Channel:
    """The two pipes. They move out of the way of user code, and its children do not inherit them."""

    def __init__(self):
        self.forked = False
        self.lock = _thread.allocate_lock()
        self.orders = self.answers = -1

    def open(self):
        self.orders = self._away(ORDERS)
        self.answers = self._away(ANSWERS)

    def _away(self, fd):
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
        os.close(fd)
        return moved

    def read(self):
        """The next order as a list of bytes, or nothing when the daemon is gone."""
        head = self._exactly(4)
        if head is None:
            return None
        fields = []
        for _ in range(struct.unpack(">I", head)[0]):
            (size,) = struct.unpack(">I", self._exactly(4))
            fields.append(self._exactly(size))
        return fields

    def _exactly(self, size):
        pieces = []
        while size:
            piece = os.read(self.orders, min(size, PIECE))
            if not piece:
                return None
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def tell(self, *fields, answered=False):
        """Send a frame; with `answered` wait until the daemon took it and all output before it.

        Between cells nobody answers, so what a thread that lives on has to show then is dropped.
        """
        if self.forked:
            return
        interrupts.hold()
        try:
            with self.lock:
                if answered and not interrupts.running:
                    return
                self._write(fields)
                if answered and self.read() is None:
                    os._exit(0)
        finally:
            interrupts.let()

    def _write(self, fields):
        data = [struct.pack(">I", len(fields))]
        for field in fields:
            raw = field if isinstance(field, bytes) else field.encode("utf-8", PATIENT)
            data += [struct.pack(">I", len(raw)), raw]
        left = memoryview(b"".join(data))
        while left:
            left = left[os.write(self.answers, left) :]


interrupts = Interrupts()
channel = Channel()


def listen():
    """Take the pipes over and answer interrupts from now on."""
    channel.open()
    interrupts.listen()
