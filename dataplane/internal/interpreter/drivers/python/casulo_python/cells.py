# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Cells: compiled, executed in one namespace, their last value and their errors told."""

import _ast
import builtins
import sys
import types

from casulo_python import finder, forms, output
from casulo_python.wire import PATIENT, channel, interrupts

AWAIT = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
TREE_FLAGS = _ast.PyCF_ONLY_AST | AWAIT
COROUTINE = 0x80
FUTURES = ~0xFFFF
BYTE_ORDER_MARK = "\ufeff"
LONGEST_TRACEBACK = 500
LONGEST_LINE = 100_000


class StdinNotImplementedError(NotImplementedError):
    """There is no one to ask."""

    __module__ = "builtins"


def no_input(prompt=""):
    raise StdinNotImplementedError(
        "input() cannot be answered here: nobody is at the keyboard; write the value into the code"
    )


def no_password(prompt="Password: ", stream=None):
    raise StdinNotImplementedError(
        "getpass() cannot be answered here: nobody is at the keyboard; "
        "hand secrets over as environment variables"
    )


def make_main():
    """The module that cells live in."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv[:] = [""]
    return module.__dict__


def offer_builtins():
    builtins.display, builtins.input = forms.display, no_input
    usual.update(builtins.__dict__)


usual = {}


def restore_builtins():
    """What a cell deleted is back for the next one: without `len` nothing works, this driver included."""
    for name in usual.keys() - builtins.__dict__.keys():
        setattr(builtins, name, usual[name])


namespace = make_main()


class Futures:
    """Remembers `from __future__ import …` for the cells that follow."""

    flags = 0

    def note(self, code):
        if code.co_flags & FUTURES:
            import __future__ as features

            for name in features.all_feature_names:
                self.flags |= code.co_flags & getattr(features, name).compiler_flag


class Loop:
    """One event loop for all cells, made for the first that awaits something."""

    loop = None

    def run(self, coroutine):
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            self._cancel(task)
            raise

    def _cancel(self, task):
        if task.done():
            return  # it was interrupted between two awaits, and the loop would never stop for it
        task.cancel()
        try:
            self.loop.run_until_complete(task)
        except BaseException:
            return  # the interrupt is what is told


futures = Futures()
loop = Loop()


def run_source(source, name):
    """Execute statements; returns the value of the last one if it is an expression."""
    flags = futures.flags | AWAIT
    tree, text = parsed(source, name, flags | TREE_FLAGS)
    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr) and not is_silenced(tree.body[-1], text):
        last = _ast.Expression(tree.body.pop().value)
    parts = [compile(tree, name, "exec", flags, True)] if tree.body else []
    for code in parts:
        futures.note(code)
    if last is not None:
        parts.append(compile(last, name, "eval", futures.flags | AWAIT, True))
    return perform(parts)


def parsed(source, name, flags):
    """The cell's tree, and the text that it is the tree of."""
    try:
        return compile(source, name, "exec", flags, True), source
    except SyntaxError:
        if not any(mark in source for mark in "%!?"):
            raise
        from casulo_python import magics

        python = magics.python_of(source)
        if python == source:
            raise
    return compile(python, name, "exec", flags, True), python


def is_silenced(statement, text):
    """A semicolon behind the last statement says that the value is not wanted."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", PATIENT).split(b"\n")
    return lines[statement.end_lineno - 1][statement.end_col_offset :].lstrip().startswith(b";")


def perform(parts):
    """Statements, then the last expression. If either awaits, both run in the loop, for tasks to be made."""
    if any(code.co_flags & COROUTINE for code in parts):
        return loop.run(awaited(parts))
    value = None
    for code in parts:
        value = eval(code, namespace)
    return value


async def awaited(parts):
    value = None
    for code in parts:
        value = eval(code, namespace)
        if code.co_flags & COROUTINE:
            value = await value
    return value


def show_figures():
    """Figures that the cell left open. Those that cannot be drawn do not hide what the cell raised itself."""
    if "matplotlib.pyplot" not in sys.modules or channel.forked:
        return
    from casulo_python import figures

    failed = sys.exc_info()[0] is not None
    try:
        figures.show()
    except Exception:
        if not failed:
            raise
        forms.complain()


def use_options(options):
    wanted = options.get("figures")
    if wanted or "casulo_python.figures" in sys.modules:
        from casulo_python import figures

        figures.settings.chosen = tuple(wanted.split(",")) if wanted else None


def use_ipython(source):
    """Cells that name IPython shall find it running, or its stand-in where it is missing."""
    if "IPython" in source or "get_ipython" in source:
        from casulo_python import magics

        if magics.shell.get() is None:
            finder.last.wanted = True


def run(source, number, options):
    """One cell, from its text to its last frame but one."""
    name, source = f"<cell {number}>", source.lstrip(BYTE_ORDER_MARK)
    finder.remember(name, source)
    try:
        interrupts.begin()
        use_options(options)
        use_ipython(source)
        try:
            value = run_source(source, name)
            if value is not None:
                builtins._ = value
                if "matplotlib" in sys.modules:
                    from casulo_python import figures  # noqa: F401
                forms.show("result", forms.forms_of(value))
        finally:
            restore_builtins()
            show_figures()
        interrupts.end()
    except BaseException as error:
        interrupts.end()
        if channel.forked:
            raise
        output.flush()
        report(error)


def report(error):
    """Tell an exception as Python would print it, without the driver's own frames."""
    import traceback

    try:
        told = traceback.TracebackException(type(error), error, users_part(error.__traceback__))
        drop_own_frames(told)
        lines = [line.rstrip("\n") for line in told.format()]
    except Exception as failure:
        lines = [f"{type(error).__name__} (its traceback cannot be shown: {type(failure).__name__})"]
    fields = type(error).__name__, text_of(error), *lines[-LONGEST_TRACEBACK:]
    channel.tell("error", *map(shortened, fields))


def users_part(trace):
    """From the first frame of a cell on; where there is none, without our frames."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename[:1] != "<":
        part = part.tb_next
    while trace is not None and is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return part or trace


def shortened(text):
    """Who raises megabytes shall not bring the whole context down."""
    if len(text) <= LONGEST_LINE:
        return text
    return f"{text[:LONGEST_LINE]}... ({len(text)} characters)"


def drop_own_frames(told):
    """Frames of helpers below the user's code, such as that of a magic, are of no interest either."""
    while told is not None:
        told.stack[:] = [frame for frame in told.stack if not is_ours(frame.filename)]
        told = told.__cause__ or told.__context__


def is_ours(filename):
    return filename.startswith(OWN)


OWN = __file__.rpartition("/")[0]


def text_of(error):
    try:
        return str(error)
    except Exception:
        return "<the error has no text>"
