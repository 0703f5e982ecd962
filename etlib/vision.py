"""Images as tokens: cutting into patches and putting back together."""

import numpy as np
from jaxtyping import Array, Shaped

Images = Array | np.ndarray


def patchify(
    images: Shaped[Images, "*b height width C"], patch: int
) -> Shaped[Images, "*b N patch_values"]:
    """Cut images into square patches, row by row; each patch is flattened as (row, column, C).

    Raises ValueError when `patch` does not divide the height or the width.
    """
    *batch, height, width, channels = images.shape
    rows, columns = grid(height, width, patch)
    cut = images.reshape(*batch, rows, patch, columns, patch, channels)
    return cut.swapaxes(-4, -3).reshape(*batch, rows * columns, patch * patch * channels)


def unpatchify(
    patches: Shaped[Images, "*b N patch_values"], height: int, width: int, patch: int
) -> Shaped[Images, "*b height width C"]:
    """The inverse of `patchify`.

    Raises ValueError when the patches do not make up an image of that size.
    """
    *batch, n_patches, values = patches.shape
    rows, columns = grid(height, width, patch)
    channels, rest = divmod(values, patch * patch)
    if n_patches != rows * columns or rest:
        raise ValueError(
            f"{n_patches} patches of {values} values do not make a {height}x{width} image "
            f"of {patch}x{patch} patches: that takes {rows * columns} patches "
            f"of {patch * patch} values a channel"
        )
    cut = patches.reshape(*batch, rows, columns, patch, patch, channels)
    return cut.swapaxes(-4, -3).reshape(*batch, height, width, channels)


def grid(height: int, width: int, patch: int) -> tuple[int, int]:
    """Rows and columns of patches in an image.

    Raises ValueError, naming height, width and patch, when the patch does not divide them.
    """
    if patch < 1 or height % patch or width % patch:
        raise ValueError(
            f"a {height}x{width} image does not divide into {patch}x{patch} patches: "
            f"height and width must be multiples of the patch"
        )
    return height // patch, width // patch
