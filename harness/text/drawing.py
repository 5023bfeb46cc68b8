"""Style of pictures: colours that are distinguishable to everybody, labels at the ends of lines, reproducible files.

Matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from harness.support.errors import UsageError

SUFFIXES = (".png", ".svg")
# Okabe and Ito, "Color Universal Design", 2008, without the yellow, which is invisible on white paper. Markers and
# dashes differ as well, for printing in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
GREY = "#666666"


def require_drawable(path: Path) -> None:
    """Raise `UsageError` if the file suffix is not that of a picture, or if Matplotlib is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot draw {path}: its name has to end in {' or '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"cannot draw {path}: {error}; pip install matplotlib") from error


def label_ends(axes: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Put labels to the right of the ends of lines, moved apart if they would overlap."""
    if not ends:
        return  # no line: no values are known
    height = 0.045
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted((float(to_axes.transform((x, y))[1]), x, y, label, colour) for x, y, label, colour in ends)
    at = [place for place, *_ in placed]
    for index in range(1, len(at)):
        at[index] = max(at[index], at[index - 1] + height)
    excess = max(0.0, at[-1] - 1.0)
    at = [place - excess for place in at]
    for place, (_, x, y, label, colour) in zip(at, placed):
        axes.annotate(
            label, (x, y), (1.03, place), textcoords="axes fraction", fontsize=9, color=colour, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4},
            annotation_clip=False,
        )  # fmt: skip


def plain_numbers() -> Any:
    """A formatter of plain numbers, without powers of ten."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.12g}")


def figure_with_room(width: float = 0.64) -> tuple[Any, Any]:
    """A figure and its axes, with space for labels on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4))
    axes = figure.add_axes((0.09, 0.13, width, 0.75))
    axes.set_axisbelow(True)
    open_frame(axes)
    return figure, axes


def open_frame(axes: Any) -> None:
    """Remove the top and right spines."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def saved(figure: Any, suffix: str) -> bytes:
    """The picture as a file of that type."""
    import matplotlib

    target = io.BytesIO()
    kind = suffix.lower().removeprefix(".")
    # The same sweep gives the same file: no date, no random IDs.
    metadata = {"Date": None} if kind == "svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "sweep"}):
        figure.savefig(target, format=kind, dpi=150, bbox_inches="tight", pad_inches=0.12, metadata=metadata)
    return target.getvalue()
