"""How well images are completed: one fixed task, the models and the fillings that answer it.

The task: of every held-out picture half of the patches are hidden, always the same ones. The
score is the mean squared error over the hidden patches, in ImageNet-normalised units, averaged
over pictures.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from skimage.restoration import inpaint_biharmonic

from etlib import masked_images as mi
from etlib.vision import patchify, unpatchify

Images = Float[np.ndarray, "images height width 3"]


@partial(jax.jit, static_argnums=1)
def task(numbers: Int[Array, " images"], config: mi.MaskedImageConfig) -> Int[Array, "images N"]:
    """The occlusion of each picture, from its number alone: half MASKED, none KEPT."""
    halves = replace(config, n_masked=config.n_patches // 2, n_kept=0)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(2302_07253)))(numbers)
    return jax.vmap(lambda key: mi.draw_occlusion(key, 1, halves)[0])(keys)


def score(
    complete: Callable[[Array, Array], Array],
    batches: Iterable[dict[str, np.ndarray]],
    config: mi.MaskedImageConfig,
) -> float:
    """Mean over the valid pictures of the squared error of `complete(patches, occlusion)`."""
    total, count, seen = 0.0, 0, 0
    for batch in batches:
        patches = patchify(jnp.asarray(batch["image"]), config.patch)
        occlusion = task(seen + jnp.arange(len(patches)), config)
        errors = mi.squared_error(complete(patches, occlusion), patches, occlusion)
        total += float(jnp.sum(jnp.where(batch["valid"], errors, 0.0)))
        count += int(batch["valid"].sum())
        seen += len(patches)
    return total / count


# --- fillings that learn nothing, as completions ------------------------------


def fill_with_mean(patches: Float[Array, "images N Z"], occlusion: Int[Array, "images N"]):
    """The mean of ImageNet, which is zero in normalised units."""
    return jnp.zeros_like(patches)


def fill_with_visible_mean(patches: Float[Array, "images N Z"], occlusion: Int[Array, "images N"]):
    """The mean colour of the picture's own visible patches."""
    pixels = patches.reshape(*patches.shape[:2], -1, 3)
    visible = (occlusion == mi.SEEN)[..., None, None]
    colour = jnp.sum(pixels * visible, axis=(1, 2)) / (visible.sum(axis=(1, 2)) * pixels.shape[2])
    return jnp.broadcast_to(colour[:, None, None], pixels.shape).reshape(patches.shape)


def fill_biharmonic(config: mi.MaskedImageConfig):
    """Biharmonic inpainting (scikit-image): the smoothest surface through the visible pixels."""

    def complete(patches: Float[Array, "images N Z"], occlusion: Int[Array, "images N"]):
        size = config.height, config.width, config.patch
        images = np.asarray(unpatchify(patches, *size), np.float64)
        hidden = np.broadcast_to(np.asarray(occlusion != mi.SEEN)[..., None], patches.shape)
        holes = np.ascontiguousarray(unpatchify(hidden, *size)[..., 0])
        filled = [
            inpaint_biharmonic(i, h, channel_axis=-1) for i, h in zip(images, holes, strict=True)
        ]
        return patchify(jnp.asarray(np.stack(filled), patches.dtype), config.patch)

    return complete
