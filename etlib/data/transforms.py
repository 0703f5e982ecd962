"""What happens to a picture between its file and the model: crop, flip, colour, normalisation.

Training follows the released configuration, timm's `create_transform(224, is_training=True,
color_jitter=0.4, auto_augment=None)`; evaluation its counterpart with `is_training=False`.
Both interpolate bilinearly, timm's default, and smooth before they shrink.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num
from PIL import Image, ImageEnhance

from etlib.errors import DataError

MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet, channel values in 0..1
STD = np.array([0.229, 0.224, 0.225], np.float32)
CENTRE = 0.875  # the part of the short side that evaluation keeps

_ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@dataclass(frozen=True)
class Augmentation:
    """How training images vary; the defaults are the released configuration.

    area:   range of a crop's area, as a share of the picture.
    aspect: range of a crop's width over height, drawn on a logarithmic scale.
    flip:   chance of a mirror image.
    jitter: brightness, contrast and saturation each times 1 - jitter to 1 + jitter, in random
            order; no change of hue.

    Raises DataError for values that make no crop or no factor.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.4

    def __post_init__(self):
        for name, (low, high) in {"area": self.area, "aspect": self.aspect}.items():
            if not 0 < low <= high:
                raise DataError(
                    f"augmentation: {name} goes from {low} to {high}, not 0 < low <= high"
                )
        for name, value in {"area": self.area[1], "flip": self.flip, "jitter": self.jitter}.items():
            if not 0 <= value <= 1:
                raise DataError(f"augmentation: {name} is {value}, outside 0..1")


def augment(
    image: Image.Image, size: int, rng: np.random.Generator, how: Augmentation = Augmentation()
) -> Float[np.ndarray, "{size} {size} 3"]:
    """A random crop of an RGB picture, scaled to size x size, jittered and normalised."""
    box = random_box(*image.size, rng, how.area, how.aspect)
    crop = image.crop(box).resize((size, size), Image.Resampling.BILINEAR)
    if rng.random() < how.flip:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if how.jitter:
        factors = rng.uniform(1 - how.jitter, 1 + how.jitter, len(_ENHANCERS))
        for i in rng.permutation(len(_ENHANCERS)):
            crop = _ENHANCERS[i](crop).enhance(factors[i])
    return normalise(np.asarray(crop))


def centre(image: Image.Image, size: int) -> Float[np.ndarray, "{size} {size} 3"]:
    """The middle of an RGB picture, normalised: its short side to size / 0.875, then cropped."""
    short = math.floor(size / CENTRE)
    width, height = (max(short, int(short * side / min(image.size))) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return normalise(np.asarray(scaled.crop((left, top, left + size, top + size))))


def random_box(
    width: int,
    height: int,
    rng: np.random.Generator,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of a random crop, at least one pixel and inside the picture.

    Ten draws that do not fit are followed by the largest box in the middle whose aspect is in
    range, as in torchvision.
    """
    for _ in range(10):
        target = width * height * rng.uniform(*area)
        ratio = math.exp(rng.uniform(*np.log(aspect)))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.integers(width - w + 1), rng.integers(height - h + 1)
            return int(left), int(top), int(left) + w, int(top) + h
    ratio = min(max(width / height, aspect[0]), aspect[1])
    w = max(1, min(width, round(height * ratio)))
    h = max(1, min(height, round(width / ratio)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def normalise(values: Num[np.ndarray, "*b 3"]) -> Float[np.ndarray, "*b 3"]:
    """RGB in 0..255 less ImageNet's mean, over its standard deviation, in float32."""
    scaled = np.multiply(values, 1 / (255 * STD), dtype=np.float32)
    scaled -= MEAN / STD
    return scaled


def denormalise(values: Num[np.ndarray, "*b 3"]) -> Float[np.ndarray, "*b 3"]:
    """The inverse of `normalise`, but in 0..1; a model's output may lie outside."""
    return np.asarray(values, np.float32) * STD + MEAN
