"""Patches: exact round trips on images that are not square, and clear refusals."""

import numpy as np
import pytest

from etlib.data.photos import PHOTOGRAPHS, photograph
from etlib.vision import patchify, unpatchify


@pytest.mark.parametrize("height, width, channels", [(8, 12, 1), (12, 8, 1), (8, 12, 3), (4, 4, 2)])
@pytest.mark.parametrize("batch", [(), (0,), (5,), (2, 3)])
def test_round_trip(height, width, channels, batch):
    row, column = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    image = (100 * row + column)[..., None] + 10_000 * np.arange(channels)
    images = np.broadcast_to(image, (*batch, *image.shape))
    patches = patchify(images, 4)
    assert patches.shape == (*batch, height * width // 16, 16 * channels)
    np.testing.assert_array_equal(unpatchify(patches, height, width, 4), images)


def test_patches_go_row_by_row():
    image = (100 * np.arange(8)[:, None] + np.arange(12))[..., None]
    patches = patchify(image, 4)
    assert patches[1, 0] == 4  # the second patch starts at pixel (0, 4)
    assert patches[3, 0] == 400  # and the first of the second row at (4, 0)


@pytest.mark.parametrize("height, width, patch", [(10, 8, 4), (8, 10, 4), (8, 8, 0)])
def test_indivisible_sizes_are_refused(height, width, patch):
    with pytest.raises(ValueError, match=rf"{height}x{width} image .* {patch}x{patch} patches"):
        patchify(np.zeros((height, width, 3)), patch)


def test_patches_of_another_image_are_refused():
    with pytest.raises(ValueError, match="6 patches of 48 values do not make a 8x8 image"):
        unpatchify(np.zeros((6, 48)), 8, 8, 4)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs_are_colour_pictures(name):
    image = photograph(name)
    assert image.dtype == np.uint8
    assert min(image.shape[:2]) >= 300
    assert np.ptp(image.reshape(-1, 3), axis=0).min() > 100
    assert np.abs(np.diff(image.astype(int), axis=2)).max() > 20  # not a grey picture


def test_unknown_photograph():
    with pytest.raises(ValueError, match="astronaut, chelsea"):
        photograph("parrot")
