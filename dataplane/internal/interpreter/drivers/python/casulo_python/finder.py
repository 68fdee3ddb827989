# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What happens when user code imports certain modules.

matplotlib is made to draw into memory. `linecache`, which shows lines of source in tracebacks and warnings,
learns the cells. Cells written for notebooks find `IPython.display` where IPython itself is missing.
"""

import os
import sys

BACKEND = "casulo_figures"
sources = {}
"""The text of each cell by its name."""


def remember(name, source):
    """Let tracebacks show the lines of a cell."""
    sources[name] = source
    if "linecache" in sys.modules:
        teach(sys.modules["linecache"])


def teach(linecache):
    for name, source in sources.items():
        linecache.cache[name] = (len(source), None, [line + "\n" for line in source.split("\n")], name)
    sources.clear()


def draw_into_memory(matplotlib):
    if "MPLBACKEND" not in os.environ:
        matplotlib.rcParams["backend"] = "module://" + BACKEND


def refuse_to_ask(getpass):
    from casulo_python import cells

    getpass.getpass = cells.no_password


HOOKS = {"matplotlib": draw_into_memory, "linecache": teach, "getpass": refuse_to_ask}


class First:
    """Asked before everybody else."""

    def find_spec(self, name, path=None, target=None):
        if name == BACKEND:
            from casulo_python import figures

            return made(name, figures.backend)
        return self._hooked(name) if name in HOOKS else None

    def _hooked(self, name):
        """The real module, with our word after it was executed."""
        import importlib.util

        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = After(spec.loader, HOOKS[name])
        return spec


class After:
    """A loader that does one thing more than another one."""

    def __init__(self, loader, then):
        self._loader = loader
        self._then = then

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._then(module)


class Last:
    """Asked when nobody else knows the module."""

    wanted = False
    """Only cells that name IPython get its stand-in; libraries that look for it shall not find it."""

    def find_spec(self, name, path=None, target=None):
        if not self.wanted or name not in ("IPython", "IPython.display"):
            return None
        from casulo_python import notebook

        return made(name, notebook.package if name == "IPython" else notebook.display_module)


class Made:
    """A loader of a module that a function makes."""

    def __init__(self, make):
        self._make = make

    def create_module(self, spec):
        return self._make()

    def exec_module(self, module):
        """It is complete already."""


def made(name, make):
    from importlib.machinery import ModuleSpec

    return ModuleSpec(name, Made(make), is_package=name == "IPython")


last = Last()


def install():
    sys.meta_path.insert(0, First())
    sys.meta_path.append(last)
