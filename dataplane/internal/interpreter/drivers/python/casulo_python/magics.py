# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Cells that are no Python: with IPython in the image its own translation, without it the basics."""

import os
import subprocess
import sys

from casulo_python import cells, finder, forms

HELPER = "__casulo_magics"
"""The name under which translated cells find this module."""


class UsageError(Exception):
    """A magic that is not there, or that did not do what it should."""

    __module__ = "builtins"


def python_of(source):
    """The cell as Python. Python itself refused it before."""
    ipython = shell.get()
    if ipython is not None:
        return ipython.transform_cell(source)
    cells.namespace[HELPER] = sys.modules[__name__]
    if source.startswith("%%"):
        first, _, body = source.partition("\n")
        name, _, rest = first[2:].partition(" ")
        return f"{HELPER}.cell_magic({name.strip()!r}, {rest.strip()!r}, {body!r})"
    return by_line(source)


def by_line(source):
    """Only lines at which Python itself stumbles are translated, so strings stay what they are."""
    lines = source.split("\n")
    for _ in lines:
        try:
            compile("\n".join(lines), "<cell>", "exec", cells.TREE_FLAGS, True)
        except SyntaxError as error:
            number = (error.lineno or 0) - 1
            if not 0 <= number < len(lines):
                return source
            text, taken = continued(lines, number)
            changed = translated(text)
            if changed is None:
                return source
            lines[number : number + taken] = [changed] + [""] * (taken - 1)
        else:
            break
    return "\n".join(lines)


def continued(lines, number):
    """A line with those that it goes on in behind a backslash, and how many they are."""
    text, taken = lines[number], 1
    while text.endswith("\\") and number + taken < len(lines):
        text = text[:-1] + lines[number + taken]
        taken += 1
    return text, taken


def translated(line):
    """A line of magic as the Python that does it, or nothing."""
    text = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    target, equals, command = (part.strip() for part in text.partition("="))
    if "?" in (text[:1], text[-1:]) and text.strip("?").replace(".", "_").isidentifier():
        return f"{indent}help({text.strip('?')})"
    if text[:1] in ("!", "%"):
        call = as_call(text, "run_shell")
        return call and indent + call
    if equals and command[:1] in ("!", "%"):
        call = as_call(command, "shell_lines")
        return call and f"{indent}{target} = {call}"
    return None


def as_call(text, shell_function):
    if text.startswith("!"):
        return f"{HELPER}.{shell_function}({text.lstrip('!')!r})"
    name, _, rest = text[1:].partition(" ")
    return f"{HELPER}.line_magic({name!r}, {rest.strip()!r})" if name.isidentifier() else None


class Shell:
    """IPython's shell around our names, made when it is first needed; nothing where it is missing."""

    def __init__(self):
        self._sought = False
        self._shell = None

    def get(self):
        if not self._sought:
            self._sought = True
            self._shell = self._make()
        return self._shell

    def _make(self):
        try:
            from IPython.core.interactiveshell import InteractiveShell
            from traitlets.config import Config
        except ImportError:
            return None
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        main = sys.modules["__main__"]
        made = InteractiveShell.instance(config=config, user_module=main, user_ns=main.__dict__)
        made.display_pub.publish = lambda data, *arguments, **options: forms.show("display", data)
        made.display_pub.clear_output = lambda *arguments, **options: None
        made.system = made.system_raw  # the other way, through a terminal, would change line ends
        made.ask_exit = leave
        made.showtraceback = pass_on
        self._keep_ours(made)
        made.builtin_trap.activate()
        cells.offer_builtins()
        return made

    def _keep_ours(self, made):
        """Plots are drawn by us, so what is said about them is said to us."""
        theirs = made.find_line_magic("config")

        def config(rest):
            return configure(rest) if rest.startswith("InlineBackend") else theirs(rest)

        made.magics_manager.magics["line"].update(config=config, matplotlib=nothing)


def leave():
    """What `exit` means without a session to leave."""
    raise SystemExit


def pass_on(exc_tuple=None, *arguments, **options):
    """Some magics print the error of their cell and go on; here it is the error of the cell."""
    error = (exc_tuple or sys.exc_info())[1]
    if error is not None:
        raise error


shell = Shell()


def bash_or_sh():
    return "/bin/bash" if os.path.exists("/bin/bash") else None


def run_shell(command):
    """`!command`: its output goes where Python's goes."""
    cells.namespace["_exit_code"] = subprocess.call(command, shell=True, executable=bash_or_sh())


def shell_lines(command):
    """`name = !command`."""
    merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, shell=True, executable=bash_or_sh(), check=False, **merged)
    return done.stdout.decode("utf-8", "replace").splitlines()


def line_magic(name, rest):
    action = LINE_MAGICS.get(name)
    if action is None:
        raise UsageError(f"line magic %{name} is not known here; with IPython in the image all of its are")
    return action(rest)


def cell_magic(name, rest, body):
    action = CELL_MAGICS.get(name)
    if action is None:
        raise UsageError(f"cell magic %%{name} is not known here; with IPython in the image all of its are")
    return action(rest, body)


def change_directory(rest):
    os.chdir(os.path.expandvars(os.path.expanduser(rest.strip("'\"") or "~")))
    print(os.getcwd())


def pip(rest):
    import importlib
    import shlex

    code = subprocess.call(f"{shlex.quote(sys.executable)} -m pip {rest}", shell=True)
    importlib.invalidate_caches()
    if code:
        raise UsageError(f"pip ended with status {code}")


def environment(rest):
    name, equals, value = (part.strip() for part in rest.partition("=" if "=" in rest else " "))
    if not name:
        return dict(os.environ)
    if not value and not equals:
        return os.environ[name]
    os.environ[name] = value
    print(f"env: {name}={value}")
    return None


def configure(rest):
    from casulo_python import figures

    if rest.startswith("InlineBackend.figure_format"):
        wanted = rest.partition("=")[2]
        figures.settings.usual = tuple(form for form in figures.MIMES if form in wanted) or ("png",)


def timed(source):
    import time

    finder.remember("<timed>", source)
    begun, used = time.perf_counter(), time.process_time()
    value = cells.run_source(source, "<timed>")
    print(f"CPU times: {time.process_time() - used:.3g} s")
    print(f"Wall time: {time.perf_counter() - begun:.3g} s")
    return value


def captured(rest, source):
    """What the cell prints goes nowhere, or into the named variable."""
    import contextlib
    import io
    import types

    finder.remember("<captured>", source)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        cells.run_source(source, "<captured>")
    name = rest.partition(" ")[0]
    if name.isidentifier():
        cells.namespace[name] = types.SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())


def timed_often(source):
    import timeit

    timer = timeit.Timer(source, globals=cells.namespace)
    number, _ = timer.autorange()
    best = min(timer.repeat(3, number)) / number
    print(f"{best:.3g} s per loop (best of 3, {number} loops each)")


def names(rest):
    print("  ".join(sorted(name for name in cells.namespace if not name.startswith("_"))))


def run_program(program, body):
    code = subprocess.run(program, input=body.encode(), check=False).returncode
    if code:
        raise UsageError(f"{program[0]} ended with status {code}")


def write_file(rest, body):
    append = rest.startswith("-a ")
    path = os.path.expanduser(rest[3:].strip() if append else rest)
    print("Appending to" if append else "Writing", path)
    with open(path, "a" if append else "w") as file:
        file.write(body)


def shown_as(mime):
    return lambda rest, body: forms.show("display", {"text/plain": body, mime: body})


def nothing(rest):
    """What makes sense in a notebook only."""


def program(name):
    return lambda rest: run_shell(f"{name} {rest}")


LINE_MAGICS = {
    "cd": change_directory,
    "pip": pip,
    "env": environment,
    "set_env": environment,
    "config": configure,
    "time": timed,
    "timeit": timed_often,
    "who": names,
    "pwd": lambda rest: os.getcwd(),
    **{name: program(name) for name in ("ls", "cat", "mkdir", "rm", "cp", "mv")},
    **dict.fromkeys(("matplotlib", "load_ext", "autoreload"), nothing),
}
CELL_MAGICS = {
    "bash": lambda rest, body: run_program(["bash", *rest.split()], body),
    "sh": lambda rest, body: run_program(["sh", *rest.split()], body),
    "script": lambda rest, body: run_program(rest.split(), body),
    "time": lambda rest, body: timed(body),
    "capture": captured,
    "writefile": write_file,
    **{name: shown_as("text/" + name) for name in ("html", "markdown", "latex")},
    "svg": shown_as("image/svg+xml"),
}
