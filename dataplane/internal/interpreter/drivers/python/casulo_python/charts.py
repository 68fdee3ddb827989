# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a figure of matplotlib shows, as data: enough to draw it anew elsewhere.

    {"version": 1, "title": "…", "axes": [{"kind": "line", "title": "…", "legend": true,
      "x": {"label": "…", "scale": "linear", "limits": [0, 1]}, "y": {…},
      "series": [{"kind": "line", "label": "…", "x": […], "y": […], "color": "#1f77b4"}]}]}

Kinds of series: line, points, scatter, bar, area, grid, pie. An axis whose ticks have names of their own has
`categories`, and `ticks` with their places. Axes that are not two at right angles say so: `projection`. Those
in space have a third one, `z`, and series of lines and scattered points only.
"""

import itertools

from casulo_python.forms import plain

MOST_POINTS = 10000


def describe(figure):
    """The chart, or nothing: a figure that cannot be understood is only a picture."""
    title = getattr(figure, "_suptitle", None)
    try:
        return {
            "version": 1,
            "title": title.get_text() if title is not None else "",
            "axes": [axes_of(axes) for axes in figure.get_axes() if axes.get_visible()],
        }
    except Exception:
        # Artists are an open world: any of them may lack what the known ones have.
        return None


def axes_of(axes):
    if axes.name == "3d":
        series = list(spatial(axes))
    else:
        series = [*bars(axes), *lines(axes), *collections(axes), *wedges(axes), *map(grid, axes.get_images())]
    told = {
        "kind": common_kind([each["kind"] for each in series]),
        "title": axes.get_title() or axes.get_title(loc="left") or axes.get_title(loc="right"),
        "x": axis_of(axes.xaxis, axes.get_xlim(), axes.get_xscale()),
        "y": axis_of(axes.yaxis, axes.get_ylim(), axes.get_yscale()),
        "legend": axes.get_legend() is not None,
        "series": series,
    }
    if axes.name != "rectilinear":
        told["projection"] = axes.name
    if axes.name == "3d":
        told["z"] = axis_of(axes.zaxis, axes.get_zlim(), axes.get_zscale())
    return told


def common_kind(kinds):
    if not kinds:
        return "empty"
    return kinds[0] if len(set(kinds)) == 1 else "mixed"


def axis_of(axis, limits, scale):
    told = {"label": axis.get_label().get_text(), "scale": scale, "limits": numbers(limits)}
    named = categories(axis)
    if named:
        told["categories"] = named
    elif ticks := named_ticks(axis):
        told.update(categories=list(ticks.values()), ticks=list(ticks))
    if has_dates(axis):
        told.update(type="date", limits=values(axis, limits))
    return told


def categories(axis):
    """The names along an axis of text values."""
    return [str(name) for name in getattr(getattr(axis, "units", None), "_mapping", None) or ()]


def named_ticks(axis):
    """The texts that were given to ticks, by their places."""
    formatter, locator = (
        type(part).__name__ for part in (axis.get_major_formatter(), axis.get_major_locator())
    )
    if formatter == "FixedFormatter" or (formatter == "FuncFormatter" and locator == "FixedLocator"):
        texts = [text.get_text() for text in axis.get_majorticklabels()]
        places = numbers(axis.get_majorticklocs())[: len(texts)]
        return {place: texts[i] for i, place in enumerate(places) if texts[i]}
    return {}


def has_dates(axis):
    return "Date" in type(axis.get_major_formatter()).__name__


def values(axis, positions):
    """Positions along an axis as what they stand for: moments, names, or numbers."""
    found = numbers(positions)
    if has_dates(axis):
        return [None if number is None else moment(axis, number) for number in found]
    names = categories(axis)
    names = dict(enumerate(names)) if names else named_ticks(axis)
    if names and all(number in names for number in found):
        return [names[number] for number in found]
    return found


def moment(axis, number):
    """pandas counts periods, such as months, where matplotlib counts days."""
    freq = getattr(axis.get_major_formatter(), "freq", None)
    if freq is not None:
        from pandas import Period

        return Period(ordinal=int(number // 1), freq=freq).to_timestamp().isoformat()
    from matplotlib.dates import num2date

    return num2date(number).isoformat()


def numbers(positions):
    if hasattr(positions, "filled"):
        positions = positions.astype(float).filled(float("nan"))
    found = []
    for position in itertools.islice(positions, MOST_POINTS):
        number = float(position)
        if number != number or abs(number) == float("inf"):
            found.append(None)
        else:
            found.append(int(number) if number.is_integer() and abs(number) < 1 << 53 else number)
    return found


def series_of(kind, artist, **data):
    label = str(artist.get_label())
    told = {"kind": kind, "label": "" if label.startswith("_") else label, **data}
    if any(isinstance(item, list) and len(item) >= MOST_POINTS for item in data.values()):
        told["truncated"] = True
    return told


def color_of(color):
    from matplotlib.colors import to_hex

    try:
        return to_hex(color)
    except (ValueError, TypeError):
        return None


def lines(axes):
    for line in axes.get_lines():
        if line.get_transform() != axes.transData:
            continue  # a guide across the axes, without data of its own
        bare = line.get_linestyle() in ("None", "none", " ", "")
        yield series_of(
            "points" if bare else "line",
            line,
            x=values(axes.xaxis, line.get_xdata(orig=False)),
            y=values(axes.yaxis, line.get_ydata(orig=False)),
            color=color_of(line.get_color()),
        )


def bars(axes):
    for container in axes.containers:
        found = list(getattr(container, "patches", None) or ())
        if type(container).__name__ != "BarContainer" or not found:
            continue
        lying = getattr(container, "orientation", None) == "horizontal"
        across = [(b.get_y(), b.get_height()) if lying else (b.get_x(), b.get_width()) for b in found]
        along = [(b.get_x(), b.get_width()) if lying else (b.get_y(), b.get_height()) for b in found]
        yield series_of(
            "bar",
            container,
            orientation="horizontal" if lying else "vertical",
            x=values(axes.yaxis if lying else axes.xaxis, [start + size / 2 for start, size in across]),
            y=numbers([size for _, size in along]),
            base=numbers([start for start, _ in along]),
            width=numbers([size for _, size in across]),
            color=color_of(found[0].get_facecolor()),
        )


def collections(axes):
    for artist in axes.collections:
        kind = type(artist).__name__
        if kind == "PathCollection":
            yield scatter(axes, artist)
        elif kind == "QuadMesh":
            yield grid(artist)
        elif kind == "PolyCollection" and artist.get_array() is not None:
            yield scatter(axes, artist, values=numbers(artist.get_array()))  # the cells of a hexbin
        elif kind in ("PolyCollection", "FillBetweenPolyCollection") and artist.get_paths():
            outline = artist.get_paths()[0].vertices
            yield series_of(
                "area",
                artist,
                x=values(axes.xaxis, [point[0] for point in outline]),
                y=values(axes.yaxis, [point[1] for point in outline]),
            )


def scatter(axes, artist, **further):
    points, colors = artist.get_offsets(), artist.get_facecolor()
    return series_of(
        "scatter",
        artist,
        x=values(axes.xaxis, points[:, 0]),
        y=values(axes.yaxis, points[:, 1]),
        sizes=numbers(artist.get_sizes()),
        color=color_of(colors[0]) if len(colors) else None,
        **further,
    )


def spatial(axes):
    """What is in space. Its flat coordinates are those of the picture, not of the data."""
    for line in axes.get_lines():
        x, y, z = map(numbers, line.get_data_3d())
        yield series_of("line", line, x=x, y=y, z=z, color=color_of(line.get_color()))
    for artist in axes.collections:
        offsets = getattr(artist, "_offsets3d", None)
        if offsets is not None:
            x, y, z = map(numbers, offsets)
            yield series_of("scatter", artist, x=x, y=y, z=z)


def grid(artist):
    array = artist.get_array()
    told = series_of("grid", artist, shape=[int(size) for size in getattr(array, "shape", ())])
    if array is not None and array.size <= MOST_POINTS:
        told["values"] = plain(array.tolist())
    return told


def wedges(axes):
    found = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    if found:
        yield {
            "kind": "pie",
            "label": "",
            "labels": [str(wedge.get_label()) for wedge in found],
            "values": [round(abs(float(wedge.theta2) - float(wedge.theta1)) / 360, 6) for wedge in found],
            "colors": [color_of(wedge.get_facecolor()) for wedge in found],
        }
