# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Figures of matplotlib: shown when a cell ends or says `show()`, as pictures and as data."""

import io
import sys
import types

from casulo_python import finder, forms

MIMES = {"png": "image/png", "svg": "image/svg+xml"}
CHART = "application/vnd.casulo.chart+json"


class Settings:
    """In which formats pictures are made: as this cell asks, else as `%config` said."""

    usual = ("png",)
    chosen = None

    @property
    def formats(self):
        return self.chosen or self.usual


settings = Settings()
_shown = set()


def figure_of(value):
    module = sys.modules.get("matplotlib.figure")
    kind = getattr(module, "Figure", None)
    return value if kind is not None and issubclass(type(value), kind) else None


def forms_of(value):
    """The forms of a figure, or nothing for any other value. It will not be shown again by this cell."""
    figure = figure_of(value)
    if figure is None:
        return None
    _shown.add(id(figure))
    return pictures(figure)


def pictures(figure):
    from casulo_python import charts

    found = {}
    for form in settings.formats:
        file = io.BytesIO()
        figure.savefig(file, format=form, bbox_inches="tight")
        found[MIMES[form]] = file.getvalue()
    chart = charts.describe(figure)
    if chart is not None:
        found[CHART] = chart
    return found


def show(*arguments, **options):
    """Show and close every open figure that has something on it, and then raise what kept one from it."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return
    failures = []
    try:
        for manager in helpers.Gcf.get_all_fig_managers():
            try:
                show_one(manager.canvas.figure)
            except Exception as error:
                failures.append(error)
    finally:
        _shown.clear()
        helpers.Gcf.destroy_all()
    if failures:
        raise failures[0]


def show_one(figure):
    if figure.get_axes() and id(figure) not in _shown:
        forms.show("display", {"text/plain": forms.text_of(figure), **pictures(figure)})


def backend():
    """The module that matplotlib takes for its backend."""
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    module = types.ModuleType(finder.BACKEND)
    module.FigureCanvas, module.FigureManager, module.show = FigureCanvasAgg, FigureManagerBase, show
    return module


forms.figure_forms.append(forms_of)
