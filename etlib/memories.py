"""Looking into a trained image model: what its memories, keys, queries and positions hold."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from etlib import energy as en
from etlib.block import ETBlock
from etlib.masked_images import MaskedImageModel
from etlib.vision import grid


def as_patches(model: MaskedImageModel, vectors: Float[Array, "*b D"]) -> Float[Array, "*b p p 3"]:
    """Vectors of the token space as the decoder shows them, less what it shows of no direction.

    What is taken away is the decoder's answer to a token that normalises to delta: the mean
    patch. What is left is what the direction of the vector adds; layer norm keeps no length.
    """
    patch = model.config.patch
    mean = model.decoder(model.block.delta[...])
    return (model.decode(vectors) - mean).reshape(*vectors.shape[:-1], patch, patch, 3)


def stretched(pictures: Num[Array | np.ndarray, "*b h w c"]) -> Float[np.ndarray, "*b h w c"]:
    """Signed pictures in 0..1, each by its own largest value: mid-grey is zero."""
    values = np.asarray(pictures, np.float32)
    largest = np.abs(values).max(axis=(-3, -2, -1), keepdims=True)
    return 0.5 + 0.5 * values / np.where(largest > 0, largest, 1)


def smoothness(pictures: Float[Array, "*b h w c"]) -> Float[Array, "*b"]:
    """Correlation of pixels that are neighbours: near 1 in photographs, near 0 in noise."""
    p = pictures - pictures.mean(axis=(-3, -2), keepdims=True)
    along = (p[..., 1:, :, :] * p[..., :-1, :, :]).mean(axis=(-3, -2, -1))
    across = (p[..., :, 1:, :] * p[..., :, :-1, :]).mean(axis=(-3, -2, -1))
    return (along + across) / 2 / (p**2).mean(axis=(-3, -2, -1))


def sheet(
    pictures: Num[np.ndarray, "n h w c"], columns: int
) -> Float[np.ndarray, "height width 4"]:
    """Pictures side by side in rows, one transparent pixel apart."""
    n, h, w, c = pictures.shape
    rows = -(-n // columns)
    page = np.zeros((rows * (h + 1) - 1, columns * (w + 1) - 1, c + 1), np.float32)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (h + 1), i % columns * (w + 1)
        page[top : top + h, left : left + w, :c] = np.clip(picture, 0, 1)
        page[top : top + h, left : left + w, c] = 1
    return page


class Forces(NamedTuple):
    """Minus the gradient of each energy: what a step adds to the tokens, divided by alpha."""

    attention: Float[Array, "*b N D"]
    memories: Float[Array, "*b N D"]


def forces(block: ETBlock, x: Float[Array, "*b N D"]) -> Forces:
    """The two parts of the update at the tokens x."""
    c, g = block.config, block.norm(x)
    attention = en.attention_gradient(
        g, block.Wk[...], block.Wq[...], c.beta, self_attention=c.self_attention
    )
    return Forces(-attention, -en.hopfield_gradient(g, block.Xi[...], c.activation))


def overlaps(block: ETBlock, x: Float[Array, "*b N D"]) -> Float[Array, "*b N K"]:
    """How strongly each memory answers to each token, before the activation."""
    return jnp.einsum("...ND,KD->...NK", block.norm(x), block.Xi[...])


def active_share(h: Float[Array, "*b K"]) -> Float[Array, "*b"]:
    """The share of memories that fire for a token."""
    return (h > 0).mean(axis=-1)


def effective_share(h: Float[Array, "*b K"]) -> Float[Array, "*b"]:
    """Participation ratio of the activations over K: 1 if all fire alike, 1/K if one does.

    The activations are relu(h), and the ratio (sum r)^2 / sum r^2; 0 where none fires.
    """
    r = jax.nn.relu(h)
    square = (r**2).sum(axis=-1)
    return (
        jnp.where(square > 0, r.sum(axis=-1) ** 2 / jnp.where(square > 0, square, 1), 0)
        / (h.shape[-1])
    )


def strongest(h: Float[Array, "n K"], memory: Int[Array, " m"], top: int) -> Int[Array, "m top"]:
    """For each of some memories, the numbers of the patches that it answers to most."""
    return jax.lax.top_k(h[:, memory].T, top)[1]


def position_similarity(positions: Float[Array, "N1 D"]) -> Float[Array, "N N"]:
    """Cosine between the position biases of the patches; row 0, the class token's, is left out."""
    p = positions[1:] / jnp.linalg.norm(positions[1:], axis=-1, keepdims=True)
    return p @ p.T


def similarity_by_distance(
    similarity: Float[Array, "N N"], height: int, width: int, patch: int
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Mean similarity of the patches at each distance, in patches; the patch itself is left out."""
    rows, columns = grid(height, width, patch)
    where = np.stack(np.mgrid[:rows, :columns], -1).reshape(-1, 2)
    distance = np.linalg.norm(where[:, None] - where[None], axis=-1).round(6)
    values, place = np.unique(distance, return_inverse=True)
    total = np.bincount(place.ravel(), np.asarray(similarity).ravel())
    return values[1:], (total / np.bincount(place.ravel()))[1:]


def locality(similarity: Float[Array, "N N"], height: int, width: int, patch: int) -> float:
    """Mean similarity of neighbours less the mean over all pairs of patches."""
    n = len(similarity)
    _, by_distance = similarity_by_distance(similarity, height, width, patch)
    others = (similarity.sum() - jnp.trace(similarity)) / (n * (n - 1))
    return float(by_distance[0] - others)


def mean_norm(x: Float[Array, "*b N D"], which: Bool[Array, "*b N"]) -> Float[Array, ""]:
    """Mean length of the vectors that `which` picks."""
    return jnp.sum(jnp.linalg.norm(x, axis=-1) * which) / which.sum()
