# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The part of IPython.display that cells written for notebooks use most, where IPython is missing."""

import types

from casulo_python.forms import display

KINDS = {
    "HTML": "text/html",
    "Markdown": "text/markdown",
    "Latex": "text/latex",
    "Math": "text/latex",
    "SVG": "image/svg+xml",
    "JSON": "application/json",
    "Javascript": "application/javascript",
    "Image": "image/png",
}


def package():
    """`IPython` itself, which only leads to `IPython.display`."""
    return types.ModuleType("IPython")


def display_module():
    module = types.ModuleType("IPython.display")
    module.display = display
    module.clear_output = lambda wait=False: None
    for name, mime in KINDS.items():
        setattr(module, name, kind_of_data(name, mime))
    return module


class Data:
    """Data that is shown as one MIME type."""

    mime = "text/plain"

    def __init__(self, data=None, filename=None, url=None, **options):
        if filename is None and isinstance(data, str) and self.mime == "image/png":
            data, filename = None, data
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        if data is None:
            raise ValueError(f"{type(self).__name__} needs data or a filename")
        self.data = data

    def __repr__(self):
        return f"<IPython.core.display.{type(self).__name__} object>"

    def _repr_mimebundle_(self, include=None, exclude=None):
        is_jpeg = self.mime == "image/png" and self.data[:2] == b"\xff\xd8"
        return {"image/jpeg" if is_jpeg else self.mime: self.data}


def kind_of_data(name, mime):
    return type(name, (Data,), {"mime": mime, "__module__": "IPython.core.display"})
