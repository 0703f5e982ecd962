"""The look of every figure: transparent, mid-grey, vector; it holds on a light and a dark page."""

import os
from collections.abc import Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from jaxtyping import Num
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.scale import LogScale, register_scale
from matplotlib.ticker import LogLocator

# Text, axes and lines: contrast above 4 on white and on the dark page, #121212.
INK = "#7a7a7a"
BLUE, ORANGE, GREEN, PURPLE, RED = "#327dcb", "#b8691c", "#298a5f", "#9066cf", "#d84a4a"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED)

_STYLE = {
    "figure.figsize": (6.4, 3.0),
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": "medium",
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=PALETTE),
    "lines.linewidth": 1.5,
    "lines.markersize": 3,
    "legend.frameon": False,
    "image.interpolation": "none",  # photographs stay small rasters inside the vector file
    "svg.hashsalt": "etlib",  # the same figure gives the same file
}


class _MinorTicks(LogLocator):
    """Minor ticks of a logarithmic axis, only over so few decades that they help to read it."""

    def tick_values(self, vmin: float, vmax: float) -> Num[np.ndarray, " ticks"]:
        wide = vmin > 0 and vmax > 100 * vmin
        return np.array([]) if wide else super().tick_values(vmin, vmax)


class _Log(LogScale):
    """The logarithmic axis of all figures: laying out minor ticks takes half of their time."""

    def __init__(self, **options):
        super().__init__(**options)  # Matplotlib wants no parameter `axis` any more

    def set_default_locators_and_formatters(self, axis: Axis) -> None:
        super().set_default_locators_and_formatters(axis)
        axis.set_minor_locator(_MinorTicks(self.base, self.subs))


def use_style() -> None:
    """Apply the style, and make a notebook show its figures as SVG.

    Where the environment holds ETLIB_DRAFT, as in smoke runs, nothing is laid out: quick, but
    labels may overlap.
    """
    mpl.rcParams.update(_STYLE)
    mpl.rcParams["figure.constrained_layout.use"] = "ETLIB_DRAFT" not in os.environ
    register_scale(_Log)
    from IPython import get_ipython

    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")


def ramp(n: int) -> list[tuple[float, ...]]:
    """Colours for an ordered family of `n` curves, from blue by way of purple to red."""
    stops = LinearSegmentedColormap.from_list("ramp", [BLUE, PURPLE, RED])
    return [stops(position) for position in np.linspace(0, 1, n)]


def show_images(images: Mapping[str, Num[np.ndarray, "height width C"]], height: float = 1.6):
    """Draw images in a row, each under its title; values are clipped to what can be shown.

    Returns the figure and its axes.
    """
    figure, axes = plt.subplots(
        1, len(images), figsize=(height * len(images), height + 0.3), squeeze=False
    )
    for ax, (title, image) in zip(axes[0], images.items(), strict=True):
        ax.imshow(np.clip(image, 0, 1))
        ax.set_title(title)
        ax.axis("off")
    return figure, axes[0]


def cut_lines(ax: Axes, height: int, width: int, patch: int) -> None:
    """Draw the borders between the patches of an image."""
    for row in range(patch, height, patch):
        ax.axhline(row - 0.5, color="white", linewidth=0.7)
    for column in range(patch, width, patch):
        ax.axvline(column - 0.5, color="white", linewidth=0.7)


def label_lines(ax: Axes, spacing: float = 11.0) -> None:
    """Write each labelled line's name at its right end, in its colour, instead of a legend.

    Names are kept `spacing` points apart. Call it when the lines are drawn.
    """
    ax.figure.draw_without_rendering()  # settles limits and layout, on which the ends depend
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    points = 72 / ax.figure.dpi
    ends = [ax.transData.transform(line.get_xydata()[-1]) * points for line in lines]
    for index, height in spread([y for _, y in ends], spacing).items():
        line = lines[index]
        ax.annotate(
            line.get_label(),
            line.get_xydata()[-1],
            xytext=(8, height - ends[index][1]),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            annotation_clip=False,
        )


def spread(heights: list[float], spacing: float) -> dict[int, float]:
    """Move heights as little as it takes to stand `spacing` apart, in the same order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    groups: list[list] = []  # [sum of what the members want for the lowest one, members]
    for index in order:
        groups.append([heights[index], [index]])
        while len(groups) > 1 and _lowest(groups[-1]) < _lowest(groups[-2]) + spacing * len(
            groups[-2][1]
        ):
            wants, members = groups.pop()
            before = groups[-1][1]
            groups[-1][0] += wants - spacing * len(before) * len(members)
            before.extend(members)
    return {
        index: _lowest(group) + spacing * rank
        for group in groups
        for rank, index in enumerate(group[1])
    }


def _lowest(group: list) -> float:
    return group[0] / len(group[1])
