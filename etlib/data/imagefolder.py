"""A folder of pictures in ImageNet's layout: SPLIT/CLASS/*.JPEG, SPLIT being train or val."""

import hashlib
import logging
import os
from pathlib import Path

import numpy as np
from PIL import Image

from etlib.data.decode import read_rgb
from etlib.errors import DataError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

log = logging.getLogger(__name__)


class ImageFolder:
    """The pictures of one split, in the order of their names; item i is (RGB picture, label).

    A label is the place of the class among the sorted class names of train and val together,
    so that a class has one number in both. Names that begin with a dot, of files and of folders,
    are no part of the data set, nor are files of other kinds. A class folder may have folders
    within.

    unreadable: what batches do about a file that cannot be read, "stop" or "skip". A class
                folder without pictures is refused, or with "skip" reported; it keeps its number.

    Raises DataError, saying what layout was expected, when there is no such split.
    """

    def __init__(self, root: str | os.PathLike, split: str, unreadable: str = "stop"):
        root = Path(root).expanduser().absolute()
        self.name, self.split, self.folder = f"imagefolder:{root.name}", split, root / split
        self.unreadable = unreadable
        here = _folders(self.folder)
        if not here:
            raise DataError(_layout(root, split))
        self.classes = tuple(sorted({*_folders(root / "train"), *_folders(root / "val")}))
        names, labels, sizes = [], [], []
        for label, folder in enumerate(self.classes):
            files = sorted(_pictures(self.folder / folder)) if folder in here else []
            if folder in here and not files:
                _report_empty(self.folder / folder, unreadable)
            names += [f"{folder}/{name}" for name, _ in files]
            sizes += [size for _, size in files]
            labels += [label] * len(files)
        if not names:
            raise DataError(_layout(root, split))
        # Bytes in one array: a list of a million texts would be copied slowly to each worker.
        self._names = np.array([os.fsencode(name) for name in names])
        self.labels = np.array(labels, np.int32)
        listing = "".join(f"{n}\t{s}\n" for n, s in sorted(zip(names, sizes, strict=True)))
        self.sha256 = hashlib.sha256(os.fsencode(listing)).hexdigest()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return read_rgb(self.path(index)), int(self.labels[index])

    def path(self, index: int) -> Path:
        """The file of picture `index`."""
        return self.folder / os.fsdecode(self._names[index])


def _folders(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    with os.scandir(folder) as entries:
        return {e.name for e in entries if e.is_dir() and not e.name.startswith(".")}


def _pictures(folder: Path, prefix: str = "") -> list[tuple[str, int]]:
    """Name below the class folder, and size, of every picture."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                found += _pictures(folder / entry.name, f"{prefix}{entry.name}/")
            elif entry.name.lower().endswith(SUFFIXES):
                size = entry.stat().st_size if entry.is_file() else 0  # 0: a link to nothing
                found.append((prefix + entry.name, size))
    return found


def _report_empty(folder: Path, unreadable: str) -> None:
    message = f"the class folder {folder} holds no picture ({', '.join(SUFFIXES)})"
    if unreadable != "skip":
        raise DataError(f"{message}: fill or remove it, or set unreadable to skip")
    log.warning("%s; its number stays reserved", message)


def _layout(root: Path, split: str) -> str:
    if not root.is_dir():
        found = "there is no such folder"
    elif not (root / split).is_dir():
        found = f"there is no folder {split!r} in it"
    elif not _folders(root / split):
        found = f"{split!r} holds no class folders"
    else:
        found = f"no picture in the class folders of {split!r}"
    return (
        f"no image folder at {root}: {found}. Expected {root}/train/CLASS/*.JPEG and "
        f"{root}/val/CLASS/*.JPEG, one folder for each class"
    )
