"""Figures as pictures that are part of the page."""

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from richbll_bench.experiment import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
    "svg.hashsalt": "richbll",  # the same records make the same page, to the byte
}
_LARGEST_SVG = 400_000  # bytes; a picture of more marks than that is smaller as dots
_DPI = 192


@dataclass(frozen=True)
class Picture:
    """What an `img` needs."""

    title: str
    caption: str
    uri: str
    width: int  # in CSS pixels, when there is room


def picture(figure: Figure) -> Picture:
    """Drawn without a background, so that the page decides what is behind it."""
    with mpl.rc_context(_STYLE):
        drawing = figure.draw()
        kind, content = "svg+xml", _saved(drawing, format="svg", metadata={"Date": None, "Creator": None})
        if len(content) > _LARGEST_SVG:
            kind, content = "png", _saved(drawing, format="png", dpi=_DPI, metadata={"Software": None})
    uri = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
    return Picture(figure.title, figure.caption, uri, round(96 * drawing.get_figwidth()))


def _saved(drawing: "Drawing", **options: Any) -> bytes:
    out = io.BytesIO()
    drawing.savefig(out, transparent=True, bbox_inches="tight", **options)
    return out.getvalue()
