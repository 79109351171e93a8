"""A matplotlib figure as SVG inside a page: it takes the page's colours and font, and its text stays text."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
WIDTH = 5.0  # inches, 360 units of the drawing: a phone's width, so that text is hardly smaller there than it is here
TEXT_UNITS = 12.0
# The page's variable -> what stands for it while matplotlib draws; the page sets them, light and dark.
COLOURS = {
    "paper": "#ffffff",
    "ink": "#1c2127",
    "muted": "#56606c",
    "grid": "#dde1e6",
    "shade": "#f6ece8",
    "k1": "#0072b2",
    "k2": "#2a93cc",
    "k3": "#c84e00",
    "k4": "#a87000",
    "k5": "#b0487f",
    "k6": "#74740a",
    "k7": "#00835c",
}
FONT = "DejaVu Sans"  # comes with matplotlib, so a drawing's measures are the same everywhere
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": TEXT_UNITS,
    "axes.edgecolor": COLOURS["muted"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": COLOURS["muted"],
    "axes.labelsize": TEXT_UNITS,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.w_pad": 0.0,
    "figure.facecolor": "none",
    "figure.titlesize": TEXT_UNITS,
    "figure.titleweight": "bold",
    "grid.color": COLOURS["grid"],
    "legend.borderaxespad": 0.0,
    "legend.borderpad": 0.2,
    "legend.columnspacing": 1.4,
    "legend.fontsize": TEXT_UNITS,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.8,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,
    "xtick.color": COLOURS["muted"],
    "xtick.labelsize": TEXT_UNITS,
    "xtick.major.pad": 7.0,
    "ytick.color": COLOURS["muted"],
    "ytick.labelsize": TEXT_UNITS,
    "ytick.major.size": 0,
}
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def drawn(
    name: str,
    title: str,
    description: str,
    draw: Callable[[Axes], None],
    *,
    height: float,
    legend: str | None = None,
    columns: int = 1,
) -> Markup:
    """An `<svg>` element, the same bytes each time.

    Args:
        name: of this drawing alone in its page; its ids come from it.
        title: stands above it too.
        description: what it shows, in words and numbers, for whoever does not see it.
        draw: puts everything else into the axes.
        height: in inches; the width is WIDTH.
        legend: its own title.
        columns: of the legend, which lists what has a label.
    """
    file = StringIO()
    with style.context(["default", STYLE | {"svg.hashsalt": name}]):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        figure.suptitle(title, x=0.0, ha="left")
        axes = figure.add_subplot()
        draw(axes)
        if axes.get_legend_handles_labels()[1]:
            figure.legend(loc="outside lower left", ncols=columns, title=legend, alignment="left")
        figure.savefig(file, format="svg")
    return _inline(file.getvalue(), name, title, description)


def _inline(drawing: str, name: str, title: str, description: str) -> Markup:
    root = ElementTree.fromstring(drawing)
    metadata, styles = root[0], root[1]  # a date, and rules that the whole page would get
    root.remove(metadata)
    root.remove(styles)
    used = set(re.findall(r"#([pm][0-9a-f]{10})\b", drawing))
    for element in root.iter():
        if element.get("id") not in used:  # figure_1 and the like, which every drawing has
            element.attrib.pop("id", None)
    for size in ("width", "height", "version"):
        del root.attrib[size]
    root.attrib |= {"class": "chart", "role": "img", "aria-labelledby": f"{name}-title {name}-text"}
    for place, (kind, text) in enumerate((("title", title), ("text", description))):
        element = ElementTree.Element(f"{{{SVG}}}{'desc' if kind == 'text' else kind}", {"id": f"{name}-{kind}"})
        element.text = text
        root.insert(place, element)
    text = ElementTree.tostring(root, encoding="unicode").replace(f"font-family: '{FONT}', sans-serif; ", "")
    for variable, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    return Markup(text)
