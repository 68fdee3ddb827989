# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A cell of code that draws bars as SVG, with nothing but Python. `times` was left by the cell before."""

WIDTH, LEFT, ROW = 640, 300, 26
scale = (WIDTH - LEFT - 80) / max(milliseconds for _, milliseconds in times)  # noqa: F821


class Plot:
    """Shown as a picture."""

    def _repr_svg_(self):
        height = ROW * (len(times) + 1) + 16  # noqa: F821
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            '<text x="12" y="22" font-weight="bold">milliseconds</text>',
        ]
        for row, (name, milliseconds) in enumerate(times):  # noqa: F821
            top, length = ROW * (row + 1) + 8, max(1.0, milliseconds * scale)
            parts += [
                f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{name}</text>',
                f'<rect x="{LEFT}" y="{top + 3}" width="{length:.1f}" height="{ROW - 8}" fill="#b7791f"/>',
                f'<text x="{LEFT + length + 6:.1f}" y="{top + 15}">{milliseconds:.1f}</text>',
            ]
        return "\n".join([*parts, "</svg>"])

    def __repr__(self):
        return f"<plot of {len(times)} times>"  # noqa: F821


Plot()
