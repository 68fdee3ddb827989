# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Standard output and error: live, and in the order in which they were written."""

import _thread
import fcntl
import io
import os
import sys

from casulo_python.wire import OUT_OF_THE_WAY, PATIENT, channel, interrupts

PARTIAL_SECONDS = 0.05
WRITERS = frozenset({"subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"})
LINE_BUFFERED = 1


class Output(io.TextIOWrapper):
    """Whole lines leave at once, the rest a moment later.

    The daemon reads two pipes and cannot know which one was written first, so before the other stream is
    written it is asked to read what this one has.
    """

    current = None

    def __init__(self, fd):
        raw = io.FileIO(fd, "w", closefd=False)
        buffer = io.BufferedWriter(raw)
        super().__init__(buffer, encoding="utf-8", errors=PATIENT, newline="\n", line_buffering=True)
        self.mode = "w"

    def write(self, text):
        if Output.current is not self:
            self._take_over()
        written = super().write(text)
        if not rest.awaited and text[-1:] not in ("\n", "\r", ""):
            rest.await_flush()
        return written

    def _take_over(self):
        other, Output.current = Output.current, self
        if other is not None:
            other.flush()
            channel.tell("sync", answered=True)


class Rest:
    """Sends unfinished lines, such as progress bars, a moment after they were written."""

    def __init__(self):
        self.awaited = False
        self.started = False
        self.wanted = _thread.allocate_lock()
        self.wanted.acquire()

    def await_flush(self):
        self.awaited = True
        if not self.started:
            self.started = True
            _thread.start_new_thread(self._serve, ())
        self.wanted.release()

    def _serve(self):
        import time

        while True:
            self.wanted.acquire()
            time.sleep(PARTIAL_SECONDS)
            self.awaited = False
            flush()


class Native:
    """What C code prints would stay in the C library's buffer; it is told to send whole lines."""

    def __init__(self):
        self.library = None
        self.attaching = False

    def attach(self):
        import ctypes

        self.attaching = True  # what follows raises the event that brought us here
        try:
            library = ctypes.CDLL(None)
            library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, LINE_BUFFERED, 0)
            self.library = library
        except (OSError, AttributeError, ValueError):
            return  # another C library, which names its streams differently

    def flush(self):
        if self.library is not None:
            self.library.fflush(None)


rest = Rest()
native = Native()
streams = []


def flush():
    """Send everything that was written up to now."""
    for stream in streams:
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the user's code closed it
    native.flush()


def watch(event, arguments):
    """Called for all that Python audits: another process is about to write, or C code got a way to."""
    if event in WRITERS:
        if interrupts.running and not channel.forked:
            flush()
    elif event == "ctypes.dlopen" and not native.attaching:
        native.attach()


def after_fork():
    """A child that Python code forked must not speak in our name."""
    channel.forked = rest.awaited = True


spares = {}
"""The standard descriptors once more, for cells that close them."""


def begin():
    """Nothing was written yet that the next stream would have to wait for."""
    Output.current = None
    for fd, spare in spares.items():
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(spare, fd)
    reopen()


def reopen():
    """A cell that closes a standard stream, as `exit()` does, is not the last that may use it."""
    if sys.stdin is not None and sys.stdin is sys.__stdin__ and sys.stdin.closed:
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    for i, name in enumerate(("stdout", "stderr")):
        old = streams[i]
        if old.closed:
            fresh = streams[i] = Output(i + 1)
            if getattr(sys, name) is old:
                setattr(sys, name, fresh)
            setattr(sys, f"__{name}__", fresh)


def install():
    sys.stdout, sys.stderr = streams[:] = Output(1), Output(2)
    sys.__stdout__, sys.__stderr__ = streams
    spares.update((fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)) for fd in (0, 1, 2))
    sys.addaudithook(watch)
    os.register_at_fork(after_in_child=after_fork)
