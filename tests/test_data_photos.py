"""The shipped photographs as a data set: what is trained on and what is held out."""

import subprocess
import sys

import numpy as np
import pytest

from etlib.data import images
from etlib.data.photos import HELD_OUT, PHOTOGRAPHS, Photographs, photograph
from etlib.errors import DataError


def names(source):
    return {PHOTOGRAPHS[source[i][1]] for i in range(len(source))}


def test_held_out_photographs_are_never_trained_on():
    train, val = Photographs("train", crops=50), Photographs("val")
    assert names(val) == set(HELD_OUT)
    assert names(train) == set(PHOTOGRAPHS) - set(HELD_OUT)
    assert train.sha256 != val.sha256


def test_an_epoch_has_as_many_items_as_asked_for_and_each_photograph_its_share():
    train = Photographs("train", crops=13)
    assert len(train) == 13
    counts = np.bincount([train[i][1] for i in range(12)], minlength=len(PHOTOGRAPHS))
    assert sorted(counts) == [0, 0, 2, 2, 2, 2, 2, 2]
    image, label = train[7]
    np.testing.assert_array_equal(np.asarray(image), photograph(PHOTOGRAPHS[label]))


def test_validation_windows_are_squares_of_the_held_out_photographs():
    val = Photographs("val")
    items = [
        (np.asarray(image), PHOTOGRAPHS[label])
        for image, label in map(val.__getitem__, range(len(val)))
    ]
    assert len(items) == 38
    for pixels, name in items:
        whole = photograph(name)
        side = len(pixels)
        assert pixels.shape == (side, side, 3)
        assert side in {min(whole.shape[:2]) // parts for parts in (1, 2, 3)}
        windows = np.lib.stride_tricks.sliding_window_view(whole[:, :, 0], (1, side))
        assert (windows[:, :, 0] == pixels[0, :, 0]).all(-1).any()
    assert len({pixels.tobytes() for pixels, _ in items}) == 38


def test_photos_by_name():
    assert len(images.source("photos", "train", crops=77)) == 77
    with pytest.raises(DataError, match="no data set 'photo': there are photos and imagefolder"):
        images.source("photo", "train")
    with pytest.raises(DataError, match="no split 'test': there are train and val"):
        images.source("photos", "test")


def test_reading_pictures_loads_neither_jax_nor_scikit_learn():
    code = (
        "import sys; from etlib.data import decode, imagefolder, photos, transforms; "
        "photos.Photographs('val')[0]; print({'jax', 'sklearn', 'skimage'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
