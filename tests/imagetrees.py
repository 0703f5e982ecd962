"""Image folders for tests: small pictures in ImageNet's layout."""

import numpy as np
from PIL import Image


def picture(path, number=0, size=(40, 30)):
    """Save a picture of noise, of width and height `size`, that differs with `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(number).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(values).save(path, "JPEG")
    return path


def tree(root, classes=("n01", "n02", "n10"), splits=("train", "val"), each=1):
    """`each` pictures for every class of every split; returns the root."""
    for split in splits:
        for c, name in enumerate(classes):
            for i in range(each):
                picture(root / split / name / f"{name}_{i}.JPEG", number=100 * c + i)
    return root


def cut(path):
    """Keep the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path
