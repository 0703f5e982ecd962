"""Colour photographs that scikit-image and scikit-learn ship: always there, no download."""

from importlib.resources import files

import numpy as np
from jaxtyping import UInt8
from PIL import Image

_FILES = {
    "astronaut": ("skimage.data", "astronaut.png"),
    "chelsea": ("skimage.data", "chelsea.png"),
    "china": ("sklearn.datasets.images", "china.jpg"),
    "coffee": ("skimage.data", "coffee.png"),
    "flower": ("sklearn.datasets.images", "flower.jpg"),
    "motorcycle": ("skimage.data", "motorcycle_left.png"),
    "rocket": ("skimage.data", "rocket.jpg"),
}

PHOTOGRAPHS = tuple(_FILES)


def photograph(name: str) -> UInt8[np.ndarray, "height width 3"]:
    """One of `PHOTOGRAPHS` as RGB values.

    Raises ValueError for another name.
    """
    if name not in _FILES:
        raise ValueError(f"no photograph {name!r}; there are {', '.join(PHOTOGRAPHS)}")
    package, file = _FILES[name]
    with (files(package) / file).open("rb") as stream:
        return np.asarray(Image.open(stream).convert("RGB"))
