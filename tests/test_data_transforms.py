"""Crop, flip, colour and normalisation, each against a value worked out by hand."""

import numpy as np
import pytest
from PIL import Image

from etlib.data.transforms import (
    Augmentation,
    augment,
    centre,
    denormalise,
    normalise,
    random_box,
)
from etlib.errors import DataError

STILL = Augmentation(area=(1, 1), aspect=(1, 1), flip=0, jitter=0)


def noise(width, height):
    shape = (height, width, 3)
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_normalised_values():
    values = normalise(np.array([[0, 0, 0], [255, 255, 255]], np.uint8))
    expected = [[-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225]]
    expected += [[0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225]]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert values.dtype == np.float32
    np.testing.assert_allclose(denormalise(values), [[0, 0, 0], [1, 1, 1]], atol=1e-6)


def test_a_whole_square_at_its_own_size_is_only_normalised():
    pixels = noise(16, 16)
    out = augment(Image.fromarray(pixels), 16, rng(), STILL)
    np.testing.assert_array_equal(out, normalise(pixels))


def test_flip_mirrors_left_and_right_half_of_the_time():
    pixels = noise(8, 8)
    flipped = Augmentation(area=(1, 1), aspect=(1, 1), flip=1, jitter=0)
    out = augment(Image.fromarray(pixels), 8, rng(), flipped)
    np.testing.assert_array_equal(out, normalise(pixels[:, ::-1]))
    half = Augmentation(area=(1, 1), aspect=(1, 1), jitter=0)
    same = [
        np.array_equal(augment(Image.fromarray(pixels), 8, rng(i), half), normalise(pixels))
        for i in range(200)
    ]
    assert 70 < sum(same) < 130


def test_jitter_of_a_grey_picture_is_its_brightness_within_the_range():
    grey = Image.new("RGB", (4, 4), (100, 100, 100))
    how = Augmentation(area=(1, 1), aspect=(1, 1), flip=0)
    outs = [255 * denormalise(augment(grey, 4, rng(i), how)) for i in range(100)]
    assert all(np.ptp(out) < 1.5 for out in outs)
    values = np.array([out.mean() for out in outs])
    assert values.min() > 58 and values.max() < 142
    assert values.min() < 65 and values.max() > 135


def test_jitter_changes_contrast_and_saturation():
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[:, 0], pixels[:, 1] = (150, 100, 100), (100, 150, 100)
    how = Augmentation(area=(1, 1), aspect=(1, 1), flip=0)
    outs = [255 * denormalise(augment(Image.fromarray(pixels), 2, rng(i), how)) for i in range(50)]
    spread = np.array([np.ptp(out[..., 0]) / out[..., 2].mean() for out in outs])
    assert spread.min() < 0.4 and spread.max() > 0.6  # 0.5 before


def test_boxes_lie_inside_and_fill_the_ranges():
    boxes = np.array([random_box(60, 40, rng(i), (0.08, 1), (3 / 4, 4 / 3)) for i in range(2000)])
    left, top, right, bottom = boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (right <= 60).all() and (bottom <= 40).all()
    area = (right - left) * (bottom - top) / 2400
    aspect = (right - left) / (bottom - top)
    assert 0.06 < area.min() < 0.1 and 0.8 < area.max() <= 1
    assert 0.65 < aspect.min() < 0.8 and 1.25 < aspect.max() < 1.5
    assert left.max() > 30 and top.max() > 20


@pytest.mark.parametrize("width, height", [(1, 1), (3, 500), (500, 3), (20, 10)])
def test_small_and_narrow_pictures(width, height):
    image = Image.fromarray(noise(width, height))
    for i in range(20):
        assert augment(image, 24, rng(i)).shape == (24, 24, 3)
    assert centre(image, 24).shape == (24, 24, 3)


def test_no_box_fits_a_narrow_picture_but_the_middle():
    box = random_box(300, 10, rng(), (1, 1), (3 / 4, 4 / 3))
    assert box == (143, 0, 156, 10)  # 13 wide: 10 times 4/3


def test_centre_of_a_picture_that_needs_no_scaling():
    pixels = noise(16, 8)
    out = centre(Image.fromarray(pixels), 7)  # 7 / 0.875 = 8, the short side
    np.testing.assert_array_equal(out, normalise(pixels[0:7, 4:11]))


@pytest.mark.parametrize("width, height", [(64, 32), (32, 64), (50, 50), (5, 9)])
def test_centre_keeps_the_aspect(width, height):
    ramp = np.zeros((height, width, 3), np.uint8)
    ramp[:, width // 2 :] = 255
    out = centre(Image.fromarray(ramp), 14)
    left, right = out[:, 2].mean(), out[:, -3].mean()
    if width % 2 == 0:
        assert left < -1.7 and right > 2.2  # the edge runs through the middle
    assert out.shape == (14, 14, 3)


@pytest.mark.parametrize(
    "wrong",
    [{"area": (0, 1)}, {"area": (0.5, 1.5)}, {"aspect": (2, 1)}, {"flip": 2}, {"jitter": -1}],
)
def test_augmentations_that_make_no_sense(wrong):
    with pytest.raises(DataError, match=f"augmentation: {next(iter(wrong))}"):
        Augmentation(**wrong)
