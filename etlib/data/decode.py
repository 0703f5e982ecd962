"""Any picture file as 8-bit RGB, each kind by one rule.

- orientation: the EXIF tag is applied; a damaged EXIF block is ignored;
- grey, 1-bit: the value goes to all three channels;
- 16-bit grey: 0..65535 is scaled to 0..255, never stretched to the picture's own range;
- palette: looked up;
- transparency, of any kind: composited on white, the colour of a page;
- CMYK: red is (255 - cyan)(255 - black) / 255, and so on; colour profiles are not applied;
- several frames: the first.

Grey of 32 bits has no agreed range and counts as unreadable.
"""

import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from etlib.errors import DataError

# A few ImageNet files have a damaged EXIF block. It says nothing about their pixels, and
# Pillow's warning does not name the file.
warnings.filterwarnings("ignore", "Corrupt EXIF data|Truncated File Read", UserWarning, "PIL")


def read_rgb(path: str | os.PathLike) -> Image.Image:
    """The picture in a file, upright and as RGB.

    Raises DataError, naming the file by its full path, when it cannot be read whole.
    """
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except Exception as error:  # Pillow's readers raise errors of a dozen types on bad bytes
        full = Path(path).absolute()
        empty = full.is_file() and full.stat().st_size == 0
        reason = "the file is empty" if empty else str(error) or type(error).__name__
        raise DataError(f"unreadable image {full}: {reason}") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """A picture of any mode, upright and as RGB; the picture given may be changed.

    Raises ValueError for 32-bit grey.
    """
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I") or image.mode == "F":
        return _from_deep_grey(image)
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        page = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(page, coloured).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    # Mode "I" holds 32 bits, but is also what Pillow makes of some 16-bit formats.
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"grey of 32 bits (mode {image.mode}) has no agreed range")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8)).convert("RGB")
