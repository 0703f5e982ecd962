"""scikit-learn's handwritten digits: 1,797 labelled 8 x 8 images, always there, no download.

The split is one and the same for every model and seed: the test images are never used for
training, for choosing a model or for tuning a number.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import ndimage

Images = Float[np.ndarray, "n 8 8"]
Labels = Int[np.ndarray, " n"]

SEVERITIES: dict[str, tuple[float, ...]] = {
    "noise": (0.1, 0.2, 0.3, 0.4),  # standard deviation; the ink runs from 0 to 1
    "blur": (0.4, 0.6, 0.8, 1.0),  # standard deviation of the Gaussian, in pixels
    "contrast": (0.6, 0.4, 0.3, 0.2),  # factor on the deviation from the image's mean
}


class Split(NamedTuple):
    """Images with ink between 0 and 1, and the digit that each one shows."""

    images: Images
    labels: Labels


class Digits(NamedTuple):
    """1,077 images to train on, 360 to choose with, 360 to report on; classes in proportion."""

    train: Split
    validation: Split
    test: Split


def digits() -> Digits:
    """Load and split the images; the split is fixed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images, labels = (bunch.images / 16).astype(np.float32), bunch.target.astype(np.int32)
    rest, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    train, validation = train_test_split(rest, test_size=360, stratify=labels[rest], random_state=0)
    return Digits(*(Split(images[index], labels[index]) for index in (train, validation, test)))


def subset(split: Split, fraction: float, seed: int) -> Split:
    """A random part of a split, the same share of every class (at least one image of each).

    Raises ValueError for a fraction outside (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"the fraction of training images is {fraction}, not in (0, 1]")
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(split.labels):
        members = rng.permutation(np.flatnonzero(split.labels == label))
        chosen.append(members[: max(1, round(fraction * len(members)))])
    index = np.sort(np.concatenate(chosen))
    return Split(split.images[index], split.labels[index])


def corrupt(images: Images, kind: str, severity: float, seed: int = 0) -> Images:
    """Images under noise, blur or loss of contrast (`SEVERITIES` says in which unit).

    Raises ValueError for another kind.
    """
    if kind == "noise":
        noise = np.random.default_rng(seed).normal(size=images.shape)
        return (images + severity * noise).astype(images.dtype)
    if kind == "blur":
        return ndimage.gaussian_filter(images, (0, severity, severity), mode="nearest")
    if kind == "contrast":
        mean = images.mean(axis=(1, 2), keepdims=True)
        return mean + severity * (images - mean)
    raise ValueError(f"no corruption {kind!r}; there are {', '.join(SEVERITIES)}")
