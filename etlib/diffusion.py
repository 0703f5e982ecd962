"""Diffusion of images, dx/dt = div(g grad x): from the heat equation to attention.

Every step is a weighted sum of differences, x_i <- x_i + dt sum_j g_ij (x_j - x_i), and the
methods differ in the conductivity g alone: over the four neighbours of a pixel for `diffuse`,
over all pixels for `nonlocal_diffuse`. Colours share one conductivity, that of the norm of
their differences.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Image = Float[Array, "height width C"]
Number = float | Float[Array, ""]


def conductivity(kind: str, size: Float[Array, "*b"], kappa: Number) -> Float[Array, "*b"]:
    """g as a function of the size s of a difference (eq-conductivity).

    heat            1
    perona-malik    exp(-(s / kappa)^2)              (Perona and Malik 1990)
    total-variation 1 / sqrt(1 + (s / kappa)^2)      (Rudin, Osher and Fatemi 1992, smoothed)

    Each is 1 at s = 0, so that one time step is stable for all: dt <= 1/4.

    Raises ValueError for another kind.
    """
    if kind == "heat":
        return jnp.ones_like(size)
    if kind == "perona-malik":
        return jnp.exp(-((size / kappa) ** 2))
    if kind == "total-variation":
        return 1 / jnp.sqrt(1 + (size / kappa) ** 2)
    raise ValueError(f"no conductivity {kind!r}: heat, perona-malik or total-variation")


@partial(jax.jit, static_argnames=("kind", "n_steps"))
def diffuse(x: Image, kind: str, n_steps: int, kappa: Number = 0.1, dt: Number = 0.2) -> Image:
    """n_steps of x_i <- x_i + dt sum over the four neighbours of g(|x_j - x_i|) (x_j - x_i).

    Nothing flows over the border, and what leaves a pixel enters its neighbour: the mean stays.
    """

    def flow(x, axis):
        difference = jnp.diff(x, axis=axis)
        size = jnp.sqrt(jnp.sum(difference**2, axis=-1, keepdims=True) + 1e-12)
        flux = conductivity(kind, size, kappa) * difference
        edge = [(0, 0)] * 3
        edge[axis] = (1, 1)
        return jnp.diff(jnp.pad(flux, edge), axis=axis)

    def step(x, _):
        return x + dt * (flow(x, 0) + flow(x, 1)), None

    return jax.lax.scan(step, x, length=n_steps)[0]


@partial(jax.jit, static_argnames="radius")
def neighbourhoods(x: Image, radius: int = 1) -> Float[Array, "N P"]:
    """The patch around each pixel as a vector, row by row: what tells pixels apart."""
    height, width, _ = x.shape
    padded = jnp.pad(x, [(radius, radius), (radius, radius), (0, 0)], mode="edge")
    span = range(2 * radius + 1)
    shifted = [padded[i : i + height, j : j + width] for i in span for j in span]
    return jnp.stack(shifted, axis=-1).reshape(height * width, -1)


@jax.jit
def nonlocal_weights(features: Float[Array, "N P"], kappa: Number) -> Float[Array, "N N"]:
    """Rows of exp(-|p_i - p_j|^2 / kappa^2), normalised to one: non-local means (eq-nonlocal)."""
    square = jnp.sum(features**2, axis=-1)
    distance = square[:, None] + square[None] - 2 * features @ features.T
    return jax.nn.softmax(-jnp.maximum(distance, 0) / kappa**2, axis=-1)


@jax.jit
def attention_weights(features: Float[Array, "N P"], kappa: Number) -> Float[Array, "N N"]:
    """Softmax of 2 p_i . p_j / kappa^2: dot-product attention with keys = queries = patches.

    The same as `nonlocal_weights` but for the factor exp(-|p_j|^2 / kappa^2) of each key, so
    equal to it for patches of one length (eq-nonlocal-attention).
    """
    return jax.nn.softmax(2 * features @ features.T / kappa**2, axis=-1)


@partial(jax.jit, static_argnames="n_steps")
def nonlocal_diffuse(x: Image, A: Float[Array, "N N"], n_steps: int, dt: Number = 1.0) -> Image:
    """n_steps of x <- x + dt (A x - x) for rows of A that sum to one: a layer without H."""
    tokens = x.reshape(-1, x.shape[-1])

    def step(tokens, _):
        return tokens + dt * (A @ tokens - tokens), None

    return jax.lax.scan(step, tokens, length=n_steps)[0].reshape(x.shape)
