"""Colour photographs that scikit-image, scikit-learn and Matplotlib ship: no download."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from etlib.data.decode import read_rgb

_FILES = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "chelsea": ("skimage", "data/chelsea.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "hopper": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
}

PHOTOGRAPHS = tuple(_FILES)

HELD_OUT = ("chelsea", "coffee")  # nothing is ever trained on these

_WINDOWS = (1, 2, 3)  # windows of the whole short side, a half and a third of it


def photograph(name: str) -> UInt8[np.ndarray, "height width 3"]:
    """One of `PHOTOGRAPHS` as RGB values.

    Raises ValueError for another name.
    """
    return np.asarray(_picture(name))


class Photographs:
    """The photographs as a data set; item i is (RGB picture, label), the label their place
    in `PHOTOGRAPHS`.

    train: `crops` items, the six photographs in turn, each whole: the pipeline crops them
           at random, so `crops` is how many crops make an epoch.
    val:   38 fixed square windows of the two held-out ones, of three sizes.
    """

    name = "photos"
    classes = PHOTOGRAPHS
    unreadable = "stop"

    def __init__(self, split: str, crops: int = 4096):
        names = [name for name in PHOTOGRAPHS if (name in HELD_OUT) == (split == "val")]
        self.split = split
        self._items = [
            (name, box) for name in names for box in (_windows(name) if split == "val" else [None])
        ]
        self._length = len(self._items) if split == "val" else crops
        digest = hashlib.sha256()
        for name in names:
            digest.update(_path(name).read_bytes())
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        name, box = self._items[index % len(self._items)]
        picture = _picture(name)
        return picture.crop(box) if box else picture, PHOTOGRAPHS.index(name)


def _windows(name: str) -> list[tuple[int, int, int, int]]:
    """Squares side by side, centred on the photograph as a group."""
    width, height = _picture(name).size
    boxes = []
    for parts in _WINDOWS:
        side = min(width, height) // parts
        left, top = width % side // 2, height % side // 2
        boxes += [
            (x, y, x + side, y + side)
            for y in range(top, height - side + 1, side)
            for x in range(left, width - side + 1, side)
        ]
    return boxes


@cache
def _picture(name: str) -> Image.Image:
    return read_rgb(_path(name))


def _path(name: str) -> Path:
    if name not in _FILES:
        raise ValueError(f"no photograph {name!r}; there are {', '.join(PHOTOGRAPHS)}")
    package, file = _FILES[name]
    # Where the package lies, without importing it: scikit-learn would take a second.
    return Path(find_spec(package).submodule_search_locations[0]) / file
