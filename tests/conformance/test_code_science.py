# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Tables, plots as pictures and as data, and IPython, with the packages that people use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from casulo.client import Client, CodeResult, Connection, Sandbox
from support.science import packages
from support.server import Server

PNG = b"\x89PNG\r\n\x1a\n"
MESSY = '''
import io
import pandas as pd
text = """ Name ;amount; Date
 Ann ;1.234,50;2024-01-03
Bob;;03/01/2024
 Ann ;1.234,50;2024-01-03
Cyd;n/a;not a date
Dee;-7;2024-02-30
"""
df = pd.read_csv(io.StringIO(text), sep=";", skipinitialspace=True, na_values=["n/a"], dtype=str)
df.columns = df.columns.str.strip().str.lower()
df["name"] = df["name"].str.strip()
df["amount"] = pd.to_numeric(df["amount"].str.replace(".", "").str.replace(",", "."), errors="coerce")
df["date"] = pd.to_datetime(df["date"], errors="coerce", format="%Y-%m-%d")
df = df.drop_duplicates().reset_index(drop=True)
'''
PLOTS = {
    "line": "plt.plot([1, 2, 3], [4, 5, float('nan')], label='a')\nplt.legend()",
    "points": "plt.plot([1, 2], [3, 4], 'o')",
    "scatter": "plt.scatter([1, 2], [3, 4])",
    "bar": "plt.bar(['a', 'b'], [3, 4])",
    "bar lying": "plt.barh(['a', 'b'], [3, 4])",
    "histogram": "plt.hist([1, 2, 2, 3, 3, 3], bins=3)",
    "area": "plt.fill_between([1, 2, 3], [1, 4, 2])",
    "pie": "plt.pie([1, 3], labels=['x', 'y'])",
    "grid": "plt.imshow([[1, 2], [3, 4]])",
    "box": "plt.boxplot([1, 2, 3, 10])",
    "dates": "import datetime\nplt.plot([datetime.date(2024, 1, d) for d in (1, 2)], [5, 6])",
    "two axes": "_, (a, b) = plt.subplots(1, 2)\na.plot([1, 2])\nb.bar([1], [2])",
}
KINDS = {
    "bar lying": ["bar"],
    "histogram": ["bar"],
    "box": ["mixed"],
    "dates": ["line"],
    "two axes": ["line", "bar"],
}


@pytest.fixture(scope="module", params=["fake", "local"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox with the packages in it."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    place = packages()
    inside = str(place) if request.param == "fake" else "/opt/science"
    options: dict[str, Any] = {"env": {"PYTHONPATH": inside}, "resources": {"memory": "2Gi", "cpu": "2"}}
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create("host", client=client, **options) as made,
    ):
        if request.param != "fake":
            made.files.upload(place, inside)
        made.code.run("import matplotlib.pyplot as plt").check()
        yield made


def run(sandbox: Sandbox, code: str, **options: Any) -> CodeResult:
    return sandbox.code.run(code, timeout=60, **options).check()


def test_messy_table(sandbox: Sandbox) -> None:
    run(sandbox, MESSY)
    assert run(sandbox, "df.shape").text == "(4, 3)"
    assert run(sandbox, "df['amount'].tolist()").text == "[1234.5, nan, nan, -7.0]"
    assert run(sandbox, "df['date'].isna().tolist()").text == "[False, True, True, True]"
    assert run(sandbox, "df.groupby('name')['amount'].sum().to_dict()").text.startswith("{'Ann': 1234.5")


def test_table_is_text_and_html(sandbox: Sandbox) -> None:
    value = run(sandbox, "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'é']})").value
    assert value is not None
    assert value.text == "   a  b\n0  1  x\n1  2  é"
    assert value.html is not None and "<table" in value.html and "<td>é</td>" in value.html


def test_long_table_is_shortened(sandbox: Sandbox) -> None:
    value = run(sandbox, "pd.DataFrame({'n': range(100000)})").value
    assert value is not None and "[100000 rows x 1 columns]" in value.text and len(value.text) < 1000


@pytest.mark.parametrize("name", PLOTS)
def test_plot_is_a_picture_and_data(sandbox: Sandbox, name: str) -> None:
    result = run(sandbox, f"{PLOTS[name]}\nplt.title('T'); plt.xlabel('X');")
    (value,) = result.displays
    assert value.png is not None and value.png.startswith(PNG)
    assert value.text.startswith("<Figure size 640x480 with")
    chart = value.chart
    assert chart is not None
    assert [axes["kind"] for axes in chart["axes"]] == KINDS.get(name, [name])
    assert chart["axes"][-1]["title"] == "T" and chart["axes"][-1]["x"]["label"] == "X"


def test_data_of_plots(sandbox: Sandbox) -> None:
    def series(code: str) -> dict[str, Any]:
        chart = run(sandbox, code + ";").displays[0].chart
        assert chart is not None
        found: dict[str, Any] = chart["axes"][0]["series"][0]
        return found

    line = series(PLOTS["line"])
    assert (line["x"], line["y"], line["label"]) == ([1, 2, 3], [4, 5, None], "a")
    assert series(PLOTS["bar"])["x"] == ["a", "b"] and series(PLOTS["bar"])["y"] == [3, 4]
    assert series(PLOTS["bar lying"])["orientation"] == "horizontal"
    assert series(PLOTS["pie"])["values"] == [0.25, 0.75]
    assert series(PLOTS["grid"])["values"] == [[1, 2], [3, 4]]
    assert series(PLOTS["dates"])["x"][0].startswith("2024-01-01")


def test_names_of_ticks_are_data(sandbox: Sandbox) -> None:
    axes = axes_of(sandbox, "import pandas as pd; pd.DataFrame({'a': [1, 2]}, index=['x', 'y']).plot.bar()")
    assert axes["x"]["categories"] == ["x", "y"] and axes["x"]["ticks"] == [0, 1]
    assert axes["series"][0]["x"] == ["x", "y"] and axes["series"][0]["y"] == [1, 2]
    axes = axes_of(sandbox, "plt.plot([0, 1, 2], [5, 6, 7]); plt.xticks([0, 2], ['left', 'right'])")
    assert axes["x"]["categories"] == ["left", "right"] and axes["series"][0]["x"] == [0, 1, 2]


@pytest.mark.parametrize("freq", ["D", "MS", "h"])
def test_moments_of_series_are_their_own(sandbox: Sandbox, freq: str) -> None:
    axes = axes_of(
        sandbox,
        "import pandas as pd\n"
        f"s = pd.Series([1, 2], pd.date_range('2024-02-01', periods=2, freq='{freq}')); s.plot()",
    )
    second = {"D": "2024-02-02T00", "MS": "2024-03-01T00", "h": "2024-02-01T01"}[freq]
    first, last = axes["series"][0]["x"]
    assert first.startswith("2024-02-01T00:00") and last.startswith(second) and axes["x"]["type"] == "date"


def test_plots_in_space_have_three_axes(sandbox: Sandbox) -> None:
    lined = "ax = plt.figure().add_subplot(projection='3d'); ax.plot([1, 2], [3, 4], [5, 6])"
    axes = axes_of(sandbox, lined + "; ax.scatter([7], [8], [9]); ax.set_zlabel('up')")
    line, points = axes["series"]
    assert axes["projection"] == "3d" and axes["z"]["label"] == "up"
    assert (line["x"], line["y"], line["z"]) == ([1, 2], [3, 4], [5, 6])
    assert (points["x"], points["y"], points["z"]) == ([7], [8], [9])


def test_what_is_missing_is_null_and_no_warning(sandbox: Sandbox) -> None:
    drawn = (
        "import numpy as np; plt.scatter([0, 1, 2], [3, np.nan, 5]); plt.hexbin([1, 2], [1, 2], gridsize=2)"
    )
    result = run(sandbox, drawn + ";")
    chart = result.displays[0].chart
    assert chart is not None and not result.stderr
    scatter, cells = chart["axes"][0]["series"]
    assert scatter["y"] == [3, None, 5] and sum(cells["values"]) == 2


def test_figure_that_cannot_be_drawn(sandbox: Sandbox) -> None:
    """It is an error of the cell, but hides neither other figures nor an error of the cell's own."""
    broken = r"plt.plot([1]); plt.title(r'$\unknown{x}$')"
    alone = sandbox.code.run(f"{broken}; plt.figure(); plt.plot([2])", timeout=60)
    assert alone.error is not None and alone.error.name == "ValueError" and len(alone.displays) == 1
    both = sandbox.code.run(f"{broken}\n1/0", timeout=60)
    assert both.error is not None and both.error.name == "ZeroDivisionError" and "unknown" in both.stderr


def axes_of(sandbox: Sandbox, code: str) -> dict[str, Any]:
    chart = run(sandbox, code + ";").displays[0].chart
    assert chart is not None
    (found,) = chart["axes"]
    return dict(found)


def test_show_keeps_its_place(sandbox: Sandbox) -> None:
    kinds = [
        type(item).__name__
        for item in sandbox.code.stream("print('a')\nplt.plot([1])\nplt.show()\nprint('b')")
        if type(item).__name__ in ("Output", "Value")
    ]
    assert kinds == ["Output", "Value", "Output"]


def test_figure_as_last_value_is_shown_once(sandbox: Sandbox) -> None:
    result = run(sandbox, "fig, ax = plt.subplots()\nax.plot([1, 2])\nfig")
    assert result.value is not None and result.value.png and not result.displays


def test_figures_are_gone_in_the_next_cell(sandbox: Sandbox) -> None:
    run(sandbox, "plt.plot([1]);")
    assert run(sandbox, "plt.get_fignums()").text == "[]"


def test_svg_on_demand(sandbox: Sandbox) -> None:
    both = run(sandbox, "plt.plot([1, 2]);", figures=("png", "svg")).displays[0]
    assert both.png and both.svg is not None and "<svg" in both.svg
    only = run(sandbox, "%config InlineBackend.figure_formats = ['svg']\nplt.plot([1]);").displays[0]
    assert only.svg and not only.png
    run(sandbox, "%config InlineBackend.figure_formats = ['png']")
    assert run(sandbox, "plt.plot([1]);").displays[0].png


def test_figures_of_a_failed_cell_are_shown(sandbox: Sandbox) -> None:
    result = sandbox.code.run("plt.plot([1])\n1/0", timeout=60)
    assert not result.ok and len(result.displays) == 1


def test_own_choice_of_backend_is_respected(sandbox: Sandbox) -> None:
    drawn = "import io, matplotlib\nmatplotlib.use('Agg')\nplt.plot([1, 2])\nfile = io.BytesIO()\n"
    result = run(sandbox, drawn + "plt.savefig(file, format='png')\nplt.close()\nfile.getvalue()[1:4]")
    assert result.text == "b'PNG'" and not result.displays


def test_ipython_is_used_where_it_is(sandbox: Sandbox) -> None:
    context = sandbox.code.create_context("python")

    def cell(code: str) -> CodeResult:
        return run(sandbox, code, context=context)

    assert "per loop" in cell("%timeit -n 1 -r 1 1 + 1").stdout
    assert "InteractiveShell" in cell("get_ipython()").text
    shown = cell(
        "from IPython.display import display, HTML, Markdown\ndisplay(HTML('<b>x</b>'))\nMarkdown('# y')"
    )
    assert shown.displays[0].html == "<b>x</b>" and shown.value is not None and shown.value.markdown == "# y"
    assert cell("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1]);").displays[0].png
    assert cell("!echo from shell").stdout == "from shell\n"
    assert cell("names = !printf 'a\\nb'\nnames").text == "['a', 'b']"
    assert cell("x = 5\n%who_ls").text.count("'x'") == 1
    failed = sandbox.code.run("%%time\n1 / 0", context=context)
    assert failed.error is not None and failed.error.name == "ZeroDivisionError"
    assert "Traceback" not in failed.stdout
    left = sandbox.code.run("exit()", context=context)
    assert left.error is not None and left.error.name == "SystemExit" and cell("x").text == "5"
