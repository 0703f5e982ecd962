"""The loss around a trained model: slices of it, and the ends of its Hessian's spectrum."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree
from scipy.sparse.linalg import LinearOperator, eigsh

Loss = Callable[[PyTree], Float[Array, ""]]


def filter_normalised(params: PyTree, key: Key[Array, ""], stacked: PyTree) -> PyTree:
    """A Gaussian direction with every filter scaled to its parameters' norm (Li et al. 2018).

    A filter is a column, the weights into one output; `stacked` is True for the arrays whose
    first axis counts layers. Vectors (biases, and what else has no columns) do not move, as in
    Li et al.'s released code.
    """
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))

    def scaled(p, key, many):
        if p.ndim - many < 2:
            return jnp.zeros_like(p)
        direction = jax.random.normal(key, p.shape, p.dtype)
        axes = tuple(range(int(many), p.ndim - 1))
        size = jnp.sqrt(jnp.sum(direction**2, axis=axes, keepdims=True))
        return direction / size * jnp.sqrt(jnp.sum(p**2, axis=axes, keepdims=True))

    flags = jax.tree.leaves(stacked)
    return tree.unflatten([scaled(*each) for each in zip(leaves, keys, flags, strict=True)])


def loss_slice(
    loss: Loss, params: PyTree, one: PyTree, two: PyTree, radii: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n n"]:
    """loss(params + a one + b two) for a (rows) and b (columns) in `radii`."""

    @jax.jit
    def row(a):
        def at(b):
            return loss(jax.tree.map(lambda p, u, v: p + a * u + b * v, params, one, two))

        return jax.lax.map(at, jnp.asarray(radii))

    return np.stack([row(a) for a in radii])


def hessian_ends(
    loss: Loss, params: PyTree, n_each: int = 1, tolerance: float = 1e-3, seed: int = 0
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The n_each smallest and largest eigenvalues of the loss's Hessian, both ascending.

    Lanczos (scipy's eigsh) on Hessian-vector products; the matrix is never formed. Its start
    vector comes from `seed`, so that a result repeats.
    """
    flat, unravel = ravel_pytree(params)
    gradient = jax.grad(lambda v: loss(unravel(v)))

    @jax.jit
    def product(v):
        return jax.jvp(gradient, (flat,), (v,))[1]

    def matvec(v):
        return np.asarray(product(jnp.asarray(v, flat.dtype).reshape(-1)), np.float64)

    operator = LinearOperator((flat.size, flat.size), matvec=matvec, dtype=np.float64)
    start = np.random.default_rng(seed).normal(size=flat.size)
    values = eigsh(
        operator, k=2 * n_each, which="BE", tol=tolerance, v0=start, return_eigenvectors=False
    )
    values = np.sort(values)
    return values[:n_each], values[n_each:]
