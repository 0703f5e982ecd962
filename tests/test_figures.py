"""The look of the figures: colours that hold on both pages, labels that do not collide."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etlib import figures


def luminance(colour):
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("page", ["white", "#121212"])
@pytest.mark.parametrize("colour", [figures.INK, *figures.PALETTE])
def test_colours_hold_on_light_and_dark_pages(colour, page):
    dark, light = sorted([luminance(colour), luminance(page)])
    assert (light + 0.05) / (dark + 0.05) > 4


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.floats(1, 50))
def test_spread_heights_stand_apart_in_order_and_keep_their_mean(heights, spacing):
    moved = figures.spread(heights, spacing)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    gaps = np.diff([moved[index] for index in order])
    assert (gaps > spacing - 1e-6).all()
    assert np.isclose(np.mean(list(moved.values())), np.mean(heights), atol=1e-6)


def test_heights_far_enough_apart_stay():
    assert figures.spread([30.0, 0.0, 15.0], 10.0) == {1: 0.0, 2: 15.0, 0: 30.0}


def test_every_labelled_line_is_named_once():
    figure, ax = plt.subplots()
    ax.plot([0, 1], [0, 1], label="one")
    ax.plot([0, 1], [0, 1], label="two")
    ax.plot([0, 1], [1, 0])
    figures.label_lines(ax)
    assert [text.get_text() for text in ax.texts] == ["one", "two"]
    plt.close(figure)


@pytest.mark.parametrize(("reach", "few"), [(50, False), (1e4, True)])
def test_minor_ticks_of_a_logarithmic_axis_only_over_few_decades(reach, few):
    figures.use_style()
    figure, ax = plt.subplots()
    ax.loglog([1, reach], [1, reach])
    assert len(ax.xaxis.get_majorticklocs()) >= 2
    assert (len(ax.xaxis.get_minorticklocs()) == 0) == few
    plt.close(figure)


def test_a_draft_is_not_laid_out(monkeypatch):
    figures.use_style()
    assert plt.figure().get_layout_engine() is not None
    monkeypatch.setenv("ETLIB_DRAFT", "1")
    figures.use_style()
    assert plt.figure().get_layout_engine() is None
    monkeypatch.undo()
    figures.use_style()
    plt.close("all")
